# The Linux guest's first process for a guest with CXL devices: routes the window to all of them in turn,
# makes their memory RAM and device memory again by daxctl, and prints the events of the reference guest.
#
# The times are those of the command, with its start, by the kernel's log.
online=online_movable rounds=1 ways=1
for word in $cmdline; do
    case $word in
        hotmem.online=*) online=${word#*=} ;;
        hotmem.rounds=*) rounds=${word#*=} ;;
        hotmem.ways=*) ways=${word#*=} ;;
    esac
done

# Puts memory online by a policy when it is added. $1: the policy
set_policy() {
    echo "$1" > /sys/devices/system/memory/auto_online_blocks || fail "no policy $1"
}

# When the kernel finds the region, it adds the memory as RAM, which is not measured.
set_policy offline
for module in /modules/*; do
    insmod "$module" 2> /dev/null || fail "insmod $module"
done

# Waits until a shell command succeeds. $1: the command, $2: what is missing otherwise
wait_for() {
    tries=0
    until eval "$1"; do
        [ $((tries += 1)) -gt 300 ] && fail "no $2"
        sleep 0.1
    done
}

cd /sys/bus/cxl/devices || fail "no CXL bus"
wait_for '[ "$(ls -d endpoint*/decoder*.0 2> /dev/null | wc -l)" = $ways ]' "$ways CXL devices"
read -r region < decoder0.0/create_ram_region
echo "$region" > decoder0.0/create_ram_region && echo "$ways" > "$region/interleave_ways" &&
    echo 256 > "$region/interleave_granularity" || fail "no region of $ways devices"
size=0
for decoder in endpoint*/decoder*.0; do
    read -r capacity < "${decoder%/*}/uport/ram/size"
    echo ram > "$decoder/mode" && echo "$capacity" > "$decoder/dpa_size" || fail "no memory"
    size=$((size + capacity))
done
echo "$size" > "$region/size" || fail "no addresses for $size bytes"
target=0
for decoder in endpoint*/decoder*.0; do
    echo "${decoder##*/}" > "$region/target$target" || fail "no way to $decoder"
    target=$((target + 1))
done
echo 1 > "$region/commit" || fail "the decoders do not commit"
echo "$region" > /sys/bus/cxl/drivers/cxl_region/bind || fail "$region is not bound"
wait_for '[ -e /sys/bus/dax/devices/dax0.0/driver ]' "DAX device"

case $(readlink /sys/bus/dax/devices/dax0.0/driver) in
    */kmem) daxctl reconfigure-device --force --mode=devdax dax0.0 > /said 2>&1 || fail "daxctl: $(cat /said)" ;;
esac

# Sets total and free (KiB).
meminfo() {
    { read -r _ total _; read -r _ free _; } < /proc/meminfo
}

# Reconfigures the memory. $1: the mode, $2: its name in events
reconfigure() {
    meminfo
    before=$total
    dmesg -c > /dev/null
    echo begin > /dev/kmsg
    daxctl reconfigure-device --force --mode="$1" dax0.0 > /said 2>&1 || fail "daxctl: $(cat /said)"
    echo end > /dev/kmsg
    mode=$2
    set -- $(dmesg -c | sed -n 's/^\[ *\([0-9]*\)\.\([0-9]*\)\] \(begin\|end\)$/\1\2/p')
    [ $# = 2 ] || fail "no time in the log"
    meminfo
    # daxctl succeeds also where it has nothing to do.
    [ "$total" != "$before" ] || fail "daxctl has changed no memory: $(cat /said)"
    echo "{\"event\":\"reconfigured\",\"device\":0,\"mode\":\"$mode\",\"online\":$((total * 1024)),\"free\":$((free * 1024)),\"us\":$(($2 - $1))}"
}

# With `offline`, daxctl puts the memory online itself.
set_policy "$online"
round=0
while [ $((round += 1)) -le "$rounds" ]; do
    reconfigure system-ram system_ram
    reconfigure devdax device
done
while :; do sleep 1000; done
