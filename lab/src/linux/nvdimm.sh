# The Linux guest's first process for a guest with persistent memory: binds the memory as ndctl does,
# and prints the events of the reference guest on the serial console.
#
# The time for descriptors is from the kernel's own log. All other times are measured by the kernel's
# clock of 10 ms.
mount -t debugfs debug /sys/kernel/debug || fail "no /sys/kernel/debug"

nvdimm=fsdax map=dev rebinds=30
for word in $cmdline; do
    case $word in
        hotmem.nvdimm=*) nvdimm=${word#*=} ;;
        hotmem.map=*) map=${word#*=} ;;
        hotmem.rebinds=*) rebinds=${word#*=} ;;
    esac
done
case $map in
    dev) mode=pmem ;;
    mem) mode=ram ;;
    *) fail "no map $map" ;;
esac

echo "func memmap_init_zone_device +p" > /sys/kernel/debug/dynamic_debug/control ||
    fail "the kernel does not log the time for descriptors"
for module in /modules/*; do
    insmod "$module" || fail "insmod $module"
done

# Sets up (10 ms), the time since boot.
sample() {
    read -r up_text _ < /proc/uptime
    hundredths "$up_text"
    up=$time
}

devices=/sys/bus/nd/devices
wait=0
until [ -e $devices/region0/namespace0.0 ] || [ -e $devices/namespace0.0/size ]; do
    [ $((wait += 1)) -gt 100 ] && fail "no persistent memory"
    sleep 0.1
done
read -r addr < $devices/region0/resource
read -r size < $devices/region0/size
echo "{\"event\":\"nvdimm\",\"device\":0,\"addr\":$((addr)),\"size\":$size}"

# When the disk driver was loaded, it bound the whole range.
echo namespace0.0 > /sys/bus/nd/drivers/nd_pmem/unbind
case $nvdimm in
    fsdax) driver=/sys/bus/nd/drivers/nd_pmem seeds=pfn_seed ;;
    devdax) driver=/sys/bus/nd/drivers/dax_pmem seeds=dax_seed ;;
    *) fail "no namespace $nvdimm" ;;
esac
read -r seed < $devices/region0/$seeds
seed=$devices/$seed
read -r uuid < /proc/sys/kernel/random/uuid
echo $mode > "$seed/mode" && echo 2097152 > "$seed/align" && echo "$uuid" > "$seed/uuid" &&
    echo namespace0.0 > "$seed/namespace" || fail "no namespace of $nvdimm"

turn=0
while :; do
    dmesg -c > /dev/null
    sample
    started=$up
    echo "${seed##*/}" > $driver/bind || fail "binding $seed: $(dmesg -c)"
    sample
    set -- $(dmesg -c | sed -n 's/.*memmap_init_zone_device.* \([0-9]*\) pages in \([0-9]*\)ms.*/\1 \2/p')
    [ $# = 2 ] || fail "no time for descriptors in the log"
    frames=$1 ms=$2
    echo "{\"event\":\"bound\",\"device\":0,\"frames\":$frames,\"map\":0,\"saved\":0,\"written\":0,\"describe_us\":$((ms * 1000)),\"us\":$(((up - started) * 10000))}"
    [ $((turn += 1)) -gt "$rebinds" ] && break
    sample
    started=$up
    echo "${seed##*/}" > $driver/unbind || fail "unbinding $seed"
    sample
    echo "{\"event\":\"unbound\",\"device\":0,\"us\":$(((up - started) * 10000))}"
done
while :; do sleep 1000; done
