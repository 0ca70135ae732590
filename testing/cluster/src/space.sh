# Builds one machine of the cluster out of namespaces and then becomes its first process.
#
# Runs as process 1 of new mount, network, pid, uts, ipc and cgroup namespaces, with the host's file
# systems still mounted, and leaves behind a root of its own in which nothing of the host can be changed
# but devices. Everything it mounts lives in its mount namespace, so that nothing is left when it is killed.
#
# SPACE   directory of the space: etc/, var/, opt/, the list `binds`, an empty root/, receives `pid`
# NAME    host name
# LAYERS  directories of unpacked packages to lay over /usr, separated by colons, may be empty
# CGROUPS one line a hierarchy: "DIRECTORY-NAME OPTIONS" of version 1, or the single line "- -" for version 2,
#         further lines "NAME v2" for a version 2 hierarchy beside version 1
set -eu

# The host's view of this process, with its start time, because process numbers are used again.
read -r line </proc/self/stat
# shellcheck disable=SC2086 # the fields are wanted
set -- $line
shift 21
echo "${line%% *} $1" >"$SPACE/pid.new"
mv "$SPACE/pid.new" "$SPACE/pid"

root=$SPACE/root
mount -t tmpfs -o mode=755 weft "$root"
cd "$root"
mkdir usr proc sys dev run tmp etc var opt root home mnt srv media .old
chmod 1777 tmp

# Programs: the host's, read through a layer that takes all changes, with the unpacked packages above.
for d in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$d" ]; then
        cp -P "/$d" "$d"
    elif [ -d "/$d" ]; then
        mkdir "$d"
        mount --bind "/$d" "$d"
    fi
done
mkdir .usr .usr/changes .usr/work
if [ -n "$LAYERS" ]; then
    lower=$LAYERS:/usr
else
    lower=/usr
fi
if ! mount -t overlay -o "lowerdir=$lower,upperdir=$root/.usr/changes,workdir=$root/.usr/work" weft usr; then
    if [ -n "$LAYERS" ]; then
        echo "cannot lay the unpacked packages over /usr: this kernel has no overlayfs" >&2
        exit 1
    fi
    mount --bind /usr usr
fi

mount --bind "$SPACE/etc" etc
mount --bind "$SPACE/var" var
mount --bind "$SPACE/opt" opt
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount --rbind /dev dev
if [ -d dev/shm ]; then
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
fi
if [ -d /etc/alternatives ]; then
    mkdir -p etc/alternatives
    mount --bind /etc/alternatives etc/alternatives
fi

# Whatever else the programs of this space need, at places of its choosing.
while read -r source target; do
    if [ -d "$source" ]; then
        mkdir -p ".$target"
    else
        mkdir -p ".${target%/*}"
        : >".$target"
    fi
    mount --bind "$source" ".$target"
done <"$SPACE/binds"

mount -t proc proc proc
mount -t sysfs sysfs sys
if [ "$CGROUPS" = "- -" ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
    echo "$CGROUPS" | while read -r name options; do
        mkdir "sys/fs/cgroup/$name"
        if [ "$options" = v2 ]; then
            mount -t cgroup2 cgroup2 "sys/fs/cgroup/$name"
        else
            mount -t cgroup -o "$options" cgroup "sys/fs/cgroup/$name"
        fi
    done
fi

# The kubelet sets these for the whole kernel. It finds them set already, in files that are only here.
fake() {
    if [ -e "proc/sys/$1" ]; then
        mkdir -p "run/tunables/${1%/*}"
        echo "$2" >"run/tunables/$1"
        mount --bind "run/tunables/$1" "proc/sys/$1"
    fi
}
fake vm/overcommit_memory 1
fake vm/panic_on_oom 0
fake kernel/panic 10
fake kernel/panic_on_oops 1
fake kernel/keys/root_maxkeys 1000000
fake kernel/keys/root_maxbytes 25000000

pivot_root . .old
cd /
umount -l /.old
rmdir /.old
mount --make-rshared /

echo "$NAME" >/proc/sys/kernel/hostname
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
# Connections of processes that were killed keep a network namespace alive until they give up.
echo 1 >/proc/sys/net/ipv4/tcp_orphan_retries
if [ -e /proc/sys/net/ipv6/conf/all/forwarding ]; then
    echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
fi
mkdir -p /run/weft
: >/run/weft/ready

# Collect orphans until killed.
while :; do
    sleep 2147483647 &
    wait $! || :
done
