# The Linux guest's first process: loads the kernel's virtio-mem driver and prints the events of the
# reference guest on the serial console.
#
# The loop starts no program, so that polling costs the guest almost nothing: it sleeps by `read` with
# a time limit.
online=online_movable plug=0 touch=0 work=0 block=0 release=on
for word in $cmdline; do
    case $word in
        hotmem.online=*) online=${word#*=} ;;
        hotmem.block=*) block=${word#*=} ;;
        hotmem.plug=*) plug=${word#*=} ;;
        hotmem.touch=*) touch=${word#*=} ;;
        hotmem.work=*) work=${word#*=} ;;
        hotmem.release=*) release=${word#*=} ;;
    esac
done

echo "$online" > /sys/devices/system/memory/auto_online_blocks || fail "no policy $online"
for module in /modules/*; do
    options=
    case $module in
        *virtio_mem*) [ "$block" -gt 0 ] && options="force_bbm=1 bbm_block_size=$block" ;;
    esac
    insmod "$module" $options || fail "insmod $module $options"
done

# Sets total (KiB) to the size of all memory blocks, online or not. Memory that is left offline is in
# no other count.
read -r memory_block < /sys/devices/system/memory/block_size_bytes
count_blocks() {
    set -- /sys/devices/system/memory/memory[0-9]*
    total=$(($# * (0x$memory_block / 1024)))
}

# Sets total and free (KiB), and up and busy (10 ms): the time since boot, and the time that the CPUs
# were not idle.
cpus=$(nproc)
sample() {
    { read -r _ total _; read -r _ free _; } < /proc/meminfo
    [ "$online" = offline ] && count_blocks
    read -r up_text idle_text < /proc/uptime
    hundredths "$up_text"
    up=$time
    hundredths "$idle_text"
    busy=$((cpus * up - time))
}

# Prints that the device has reached a size. $1: the size in bytes.
resized() {
    echo "{\"event\":\"resized\",\"target\":$1,\"plugged\":$1,\"online\":$((total * 1024)),\"free\":$((free * 1024)),\"requests\":0,\"us\":$(((busy - settled) * 10000))}"
    settled=$busy
}

# Fills memory with a file in a tmpfs. Its pages are movable, so they are in plugged memory.
touch_some() {
    mount -t tmpfs -o size=1T tmpfs /touched || fail "no tmpfs"
    started=$up touched=$((touch >> 20 << 20))
    dd if=/dev/zero of=/touched/file bs=1M count=$((touched >> 20)) 2> /dev/null ||
        fail "no $touched B to touch"
    sample
    echo "{\"event\":\"touched\",\"bytes\":$touched,\"us\":$(((up - started) * 10000))}"
    holding=yes
    settled=$busy
}

# Reads the file, unless hotmem.release is off, and removes it. The application of the reference guest
# does the same when an unplug needs its memory.
release() {
    [ "$release" = on ] && cat /touched/file > /dev/null
    rm /touched/file
    umount /touched
    holding=
}

# Prints how much the kernel has migrated since boot, as the reference guest's event for its heap.
migrated() {
    while read -r name pages; do
        [ "$name" = pgmigrate_success ] && break
    done < /proc/vmstat
    echo "{\"event\":\"heap\",\"objects\":1,\"mapped\":$touched,\"moved\":$((pages * 4096))}"
}

mkfifo /silence
exec 3<> /silence
sample
boot=$total seen=$total settled=$busy holding=
echo "{\"event\":\"boot\",\"ms\":$((up * 10)),\"boot_memory\":$((boot * 1024)),\"cpus\":$cpus}"

# With hotmem.work, the guest needs no device: it uses memory, frees it, and then idles without
# polling.
if [ "$work" -gt 0 ]; then
    touch=$work
    touch_some
    release
    sample
    echo "{\"event\":\"freed\",\"bytes\":$touched,\"us\":$(((up - started) * 10000))}"
    while :; do sleep 1000; done
fi

while :; do
    read -r -t 0.02 -u 3 _
    sample
    [ "$total" = "$seen" ] && continue
    [ "$holding" ] && [ "$release" != off ] && [ "$total" -lt "$seen" ] && release
    seen=$total
    case $total in
        $((boot + plug / 1024)))
            resized "$plug"
            [ "$touch" -gt 0 ] && touch_some
            ;;
        "$boot")
            resized 0
            [ "$holding" ] && migrated
            ;;
    esac
done
