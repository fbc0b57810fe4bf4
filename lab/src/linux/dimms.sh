# The Linux guest's first process for a guest with memory slots: prints an event when the memory of all DIMMs
# is online, and one when it is gone.
#
# With `count`, the event has the time of the kernel's function that handles a change of a slot, for all
# slots together. One instruction takes a nanosecond then.
online=online_movable slots=0 size=0 count=off
for word in $cmdline; do
    case $word in
        hotmem.online=*) online=${word#*=} ;;
        hotmem.slots=*) slots=${word#*=} ;;
        hotmem.size=*) size=${word#*=} ;;
        hotmem.count=*) count=${word#*=} ;;
    esac
done

echo "$online" > /sys/devices/system/memory/auto_online_blocks || fail "no policy $online"
traces=/sys/kernel/tracing
if [ "$count" = on ]; then
    mount -t tracefs tracefs $traces && echo acpi_device_hotplug > $traces/set_ftrace_filter &&
        echo function_graph > $traces/current_tracer || fail "no trace of functions"
fi

# Sets done to the number of changes that are handled, and us to their time.
changes() {
    set -- $(awk '/acpi_device_hotplug/ { for (i = 2; i <= NF; i++) if ($i == "us") { n++; sum += $(i - 1) } }
        END { printf "%d %d", n, sum }' $traces/trace)
    done=$1 us=$2
}

meminfo() {
    read -r _ total _ < /proc/meminfo
}

# Waits until all slots have changed. $1: the memory that is online then (KiB)
wait_for_all() {
    done=$slots us=0
    until [ "$total" = "$1" ] && [ "$done" = "$slots" ]; do
        sleep 0.1
        meminfo
        [ "$count" = off ] || changes
    done
    [ "$count" = off ] || echo > $traces/trace
}

meminfo
base=$total
echo "{\"event\":\"boot\",\"ms\":0,\"boot_memory\":$((base * 1024)),\"cpus\":1}"
while :; do
    wait_for_all $((base + size / 1024))
    echo "{\"event\":\"dimm_added\",\"slot\":0,\"addr\":0,\"size\":$size,\"node\":0,\"online\":$((total * 1024)),\"us\":$us}"
    wait_for_all $base
    echo "{\"event\":\"dimm_removed\",\"slot\":0,\"size\":$size,\"online\":$((total * 1024))}"
done
