#!/bin/busybox sh
# The beginning of the Linux guest's first process: init.sh or nvdimm.sh follows.
export PATH=/bin
echo "TAP version 14"
/bin/busybox --install -s /bin

fail() {
    echo "Bail out! $*"
    while :; do sleep 1000; done
}

# Sets time to hundredths of a second. $1: seconds as in /proc/uptime, such as 12.34. Leading zeros are
# removed, because the shell would read the number as octal.
hundredths() {
    time=${1%.*}${1#*.}
    time=${time#0}
    time=${time#0}
}

mount -t devtmpfs dev /dev && mount -t proc proc /proc && mount -t sysfs sysfs /sys ||
    fail "no /dev, /proc or /sys"
read -r cmdline < /proc/cmdline

