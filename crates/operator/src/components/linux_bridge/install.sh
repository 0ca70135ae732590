# Runs in the image of the established plugins, after an assignment of host_dir: the directory of
# /opt/cni/bin on the host, which links have to point to.
bin_dir=/opt/cni/bin
source_dir=/usr/src/github.com/containernetworking/plugins/bin
trap 'exit 0' TERM INT

for plugin in bridge tuning; do
  ours="cnv-$plugin"
  if [[ -e "$bin_dir/$plugin" && ! -L "$bin_dir/$plugin" ]]; then
    echo "$plugin belongs to the platform, $ours will lead to it"
    ln -sfn "$host_dir/$plugin" "$bin_dir/$ours"
    continue
  fi
  cp --remove-destination "$source_dir/$plugin" "$bin_dir/$ours"
  read -r expected _ < "$source_dir/$plugin.checksum"
  read -r found _ < <(sha256sum "$bin_dir/$ours")
  if [[ "$found" != "$expected" ]]; then
    echo "$ours is damaged: its checksum is $found, and should be $expected" >&2
    exit 1
  fi
  ln -sfn "$host_dir/$ours" "$bin_dir/$plugin"
  echo "installed $ours, $plugin leads to it"
done

echo "Entering sleep... (success)"
sleep infinity &
wait
