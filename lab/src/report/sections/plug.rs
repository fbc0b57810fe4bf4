//! The section about plugging and unplugging memory in guests.

use super::section::{Cases, Plot, Row, Section};

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const GUESTS: &[(&str, &str)] = &[
    ("hotmem, 64 bytes a frame", "hotmem-64B"),
    ("hotmem, no descriptors", "hotmem"),
    ("Linux", "linux"),
];

pub(super) const SECTION: Section = Section {
    id: "plug",
    title: "Memory plugged into guests and unplugged",
    question: "How long does it take until a guest can use memory that its host plugs, and until the \
               guest has given that memory back? How do these times grow with the size?",
    published: "virtio-mem's Linux driver adds and removes memory block by block, each of 128 MiB. \
               linux-mm reports 10 s for 256 GiB and 36 s for 512 GiB under KVM on hardware (Yuan \
               Liu, March 2026), and 3 s and 7 s with a patch.",
    explanation: "The guest hotmem-64B writes a descriptor of 64 bytes for each frame, as Linux does, \
              so compare only its figures with those of Linux. The guest hotmem writes no \
              descriptors, so it does less work. Linux also runs user programs and writes a log. \
              Its script polls the memory every 20 ms, so its figures may be up to 20 ms too long. \
              Except in the row of a guest that has just booted, 2 GiB were plugged into each guest \
              and unplugged again before a row with Linux was measured.",
    not_measured: "No guest has had memory plugged by a host that uses hardware virtualization. Linux is \
               version 6.1 of Debian, with at most 64 GiB plugged; a newer Linux has not been measured.",
    steps: &["vm", "vm-cold", "vm-sizes", "vm-used", "vm-instructions"],
    rows: &[
        Row {
            title: "{} plugged into a guest, 64 bytes written for each frame",
            bench: "vm",
            step: "vm",
            case: "*/online_movable/plug",
            subject: "hotmem-64B",
            peers: LINUX,
            headline: Some("64G"),
            ..Row::DEFAULT
        },
        Row {
            title: "{} unplugged from that guest, none of it in use",
            bench: "vm",
            step: "vm",
            case: "*/online_movable/unplug",
            subject: "hotmem-64B",
            peers: LINUX,
            headline: Some("64G"),
            ..Row::DEFAULT
        },
        Row {
            title: "{} plugged into a guest that has just booted, 64 bytes written for each frame",
            bench: "vm",
            case: "*/online_movable/plug",
            step: "vm-cold",
            subject: "hotmem-64B",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "{} plugged into a guest, 64 bytes written for each frame: instructions",
            bench: "vm",
            case: "*/online_movable/plug",
            metric: "instructions",
            subject: "hotmem-64B",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "{} unplugged from that guest, none of it in use: instructions",
            bench: "vm",
            case: "*/online_movable/unplug",
            metric: "instructions",
            subject: "hotmem-64B",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "{} plugged into a guest without descriptors",
            bench: "vm",
            case: "*/online_movable/plug",
            ..Row::DEFAULT
        },
        Row {
            title: "{} unplugged from a guest without descriptors",
            bench: "vm",
            case: "*/online_movable/unplug",
            ..Row::DEFAULT
        },
        Row {
            title: "64 GiB unplugged while 1 GiB of it is in use; the guest reads that part and frees it",
            bench: "vm",
            case: "64G/online_movable/unplug-1G-checked",
            ..Row::DEFAULT
        },
        Row {
            title: "the same, but the guest frees the 1 GiB without reading it",
            bench: "vm",
            case: "64G/online_movable/unplug-1G-dropped",
            ..Row::DEFAULT
        },
        Row {
            title: "the same, but the guest moves the 1 GiB to other frames",
            bench: "vm",
            case: "64G/online_movable/unplug-1G-migrated",
            ..Row::DEFAULT
        },
        Row {
            title: "from the start of QEMU to the first line that the guest prints",
            bench: "vm",
            case: "boot",
            metric: "first_line",
            ..Row::DEFAULT
        },
    ],
    plots: &[
        Plot {
            title: "Plug, by size",
            bench: "vm",
            metric: "time",
            cases: Cases::Sizes("*/online_movable/plug"),
            subjects: GUESTS,
            is_logarithmic: true,
        },
        Plot {
            title: "Unplug, by size",
            bench: "vm",
            metric: "time",
            cases: Cases::Sizes("*/online_movable/unplug"),
            subjects: GUESTS,
            is_logarithmic: true,
        },
    ],
};
