# The Linux guest's first process: loads the kernel's virtio-mem driver and says on the serial
# console what the reference guest would say, in the same events.
#
# The loop starts no program, so that looking costs the guest next to nothing: `read` with a time
# limit is its sleep.
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

# Sets total (KiB) to the memory blocks that are there, online or not: what is left offline shows
# in them alone.
read -r memory_block < /sys/devices/system/memory/block_size_bytes
count_blocks() {
    set -- /sys/devices/system/memory/memory[0-9]*
    total=$(($# * (0x$memory_block / 1024)))
}

# Sets: total, free (KiB), up and busy, the time that the CPUs were not idle (10 ms).
cpus=$(nproc)
look() {
    { read -r _ total _; read -r _ free _; } < /proc/meminfo
    [ "$online" = offline ] && count_blocks
    read -r up_text idle_text < /proc/uptime
    hundredths "$up_text"
    up=$time
    hundredths "$idle_text"
    busy=$((cpus * up - time))
}

# $1: the size in bytes that the device has now.
resized() {
    echo "{\"event\":\"resized\",\"target\":$1,\"plugged\":$1,\"online\":$((total * 1024)),\"free\":$((free * 1024)),\"requests\":0,\"us\":$(((busy - settled) * 10000))}"
    settled=$busy
}

# Fills memory as an application does that keeps a file in it: movable, so in what was plugged.
touch_some() {
    mount -t tmpfs -o size=1T tmpfs /touched || fail "no tmpfs"
    started=$up touched=$((touch >> 20 << 20))
    dd if=/dev/zero of=/touched/file bs=1M count=$((touched >> 20)) 2> /dev/null ||
        fail "no $touched B to touch"
    look
    echo "{\"event\":\"touched\",\"bytes\":$touched,\"us\":$(((up - started) * 10000))}"
    holding=yes
    settled=$busy
}

# What the reference guest's application does when a shrink needs its memory: reads it all once
# more, unless it is told not to, and gives it back.
release() {
    [ "$release" = on ] && cat /touched/file > /dev/null
    rm /touched/file
    umount /touched
    holding=
}

# What the kernel has migrated since boot, in the reference guest's words for its heap.
migrated() {
    while read -r name pages; do
        [ "$name" = pgmigrate_success ] && break
    done < /proc/vmstat
    echo "{\"event\":\"heap\",\"objects\":1,\"mapped\":$touched,\"moved\":$((pages * 4096))}"
}

mkfifo /silence
exec 3<> /silence
look
boot=$total seen=$total settled=$busy holding=
echo "{\"event\":\"boot\",\"ms\":$((up * 10)),\"boot_memory\":$((boot * 1024)),\"cpus\":$cpus}"

# Work that needs no device: memory is used, and freed; then the guest idles without looking.
if [ "$work" -gt 0 ]; then
    touch=$work
    touch_some
    release
    look
    echo "{\"event\":\"freed\",\"bytes\":$touched,\"us\":$(((up - started) * 10000))}"
    while :; do sleep 1000; done
fi

while :; do
    read -r -t 0.02 -u 3 _
    look
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
