# The Linux guest's first process where it is to bind persistent memory: does what ndctl does, and
# says on the serial console what the reference guest would say, in the same events.
#
# How long descriptors take is what the kernel itself says in its log; all else is timed by its
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
    fail "the kernel does not say how long descriptors take"
for module in /modules/*; do
    insmod "$module" || fail "insmod $module"
done

# Sets up (10 ms).
look() {
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

# The whole range was bound as a disk when its driver came.
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
    look
    started=$up
    echo "${seed##*/}" > $driver/bind || fail "binding $seed: $(dmesg -c)"
    look
    set -- $(dmesg -c | sed -n 's/.*memmap_init_zone_device.* \([0-9]*\) pages in \([0-9]*\)ms.*/\1 \2/p')
    [ $# = 2 ] || fail "no word of descriptors"
    frames=$1 ms=$2
    echo "{\"event\":\"bound\",\"device\":0,\"frames\":$frames,\"map\":0,\"saved\":0,\"written\":0,\"describe_us\":$((ms * 1000)),\"us\":$(((up - started) * 10000))}"
    [ $((turn += 1)) -gt "$rebinds" ] && break
    look
    started=$up
    echo "${seed##*/}" > $driver/unbind || fail "unbinding $seed"
    look
    echo "{\"event\":\"unbound\",\"device\":0,\"us\":$(((up - started) * 10000))}"
done
while :; do sleep 1000; done
