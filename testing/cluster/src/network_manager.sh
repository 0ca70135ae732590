# Builds a host with NetworkManager out of namespaces, and ends it when its standard input is closed.
#
# Runs in new mount and network namespaces, in which it leaves a root where programs can change nothing of the machine
# but files below the home and temporary directories. Lines on standard input control NetworkManager:
# `kill` ends it as a crash does, `start` starts it.
#
# LAYERS  directories to lay over /usr, separated by colons, may be empty
# BUS     configuration of the D-Bus daemon
# CONFIG  configuration of NetworkManager
set -eu

scratch=/mnt
mount -t tmpfs -o mode=755 weft "$scratch"
if [ -n "$LAYERS" ]; then
    mount -t overlay -o "lowerdir=$LAYERS:/usr" weft /usr
fi
private() {
    mkdir -p "$scratch$1/changes" "$scratch$1/work"
    mount -t overlay -o "lowerdir=$1,upperdir=$scratch$1/changes,workdir=$scratch$1/work" weft "$1"
}
private /etc
private /var/lib
mount -t tmpfs -o mode=755 weft /run
mount -t sysfs sysfs /sys
# Read-only itself: then NetworkManager does not wait for udev. What it configures links by stays writable.
for below in class devices; do
    mount --bind "/sys/$below" "/sys/$below"
done
mount -o remount,bind,ro /sys

rm -rf /etc/NetworkManager /var/lib/NetworkManager
mkdir -p /run/dbus /run/NetworkManager /var/lib/NetworkManager /etc/dbus-1 /etc/NetworkManager/system-connections
chmod 700 /etc/NetworkManager/system-connections
# What the machine asks is none of this host's business.
: >/etc/resolv.conf
echo "$BUS" >/etc/dbus-1/weft.conf
echo "$CONFIG" >/etc/NetworkManager/NetworkManager.conf
ip link set lo up

# Nobody outlives this process.
setpriv --pdeathsig KILL dbus-daemon --config-file=/etc/dbus-1/weft.conf --nofork --nopidfile --nosyslog </dev/null &
bus=$!
until [ -S /run/dbus/system_bus_socket ]; do
    kill -0 "$bus"
    sleep 0.05
done

# The bus may hold the name of one that was killed a moment longer, and a successor would give up then. By this status
# nmcli says that nobody has it.
is_gone() {
    status=0
    nmcli general >/dev/null 2>&1 || status=$?
    [ "$status" = 8 ]
}
start() {
    setpriv --pdeathsig KILL NetworkManager --debug </dev/null &
    manager=$!
    # On a busy machine it may need seconds to reach the bus, and one that hangs must not keep the next from looking.
    until timeout --kill-after=1 40 nm-online --quiet --wait-for-startup --timeout=30; do
        echo "weft: nm-online ended with $?"
        kill -0 "$manager"
    done
    started=$((started + 1))
    echo "weft: started $started"
}
started=0
start
while read -r line; do
    case $line in
    kill)
        kill -KILL "$manager"
        wait "$manager" || :
        until is_gone; do
            sleep 0.05
        done
        ;;
    start) start ;;
    esac
done
kill -KILL "$manager" "$bus" || :
