#!/bin/busybox sh
# How the Linux guest's first process begins, whatever it is to do.
export PATH=/bin
echo "TAP version 14"
/bin/busybox --install -s /bin

fail() {
    echo "Bail out! $*"
    while :; do sleep 1000; done
}

# Sets time: one as /proc/uptime has it, 12.34, in hundredths of a second; a leading 0 would mean
# octal.
hundredths() {
    time=${1%.*}${1#*.}
    time=${time#0}
    time=${time#0}
}

mount -t devtmpfs dev /dev && mount -t proc proc /proc && mount -t sysfs sysfs /sys ||
    fail "no /dev, /proc or /sys"
read -r cmdline < /proc/cmdline

