//! The section of the report about plugging and unplugging memory in guests.

use super::{NAME, measure};
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};
use crate::linux::Drivers;

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const GUESTS: &[(&str, &str)] = &[
    ("hotmem, 64 bytes a frame", "hotmem-64B"),
    ("hotmem, no descriptors", "hotmem"),
    ("Linux", "linux"),
];
const TIME: Row = Row::new(NAME, measure::TIME);
const INSTRUCTIONS: Row = Row::new(NAME, measure::INSTRUCTIONS).peers(LINUX).subject("hotmem-64B");
const FIRST_LINE: Row = Row::new(NAME, measure::FIRST_LINE);

pub(crate) const SECTION: Section = Section {
    id: "plug",
    title: "Memory plugged into guests and unplugged",
    question: "How long does it take until a guest can use memory that its host plugs, and \
               until the guest has given that memory back? How do these times grow with the \
               size?",
    published: "virtio-mem's Linux driver adds and removes memory block by block, each of 128 \
               MiB. linux-mm reports 10 s for 256 GiB and 36 s for 512 GiB under KVM on \
               hardware (Yuan Liu, March 2026), and 3 s and 7 s with a patch.",
    explanation: "The guest hotmem-64B writes a descriptor of 64 bytes for each frame, as Linux \
               does, so compare only its figures with those of Linux. The guest hotmem writes \
               no descriptors, so it does less work. Linux also runs user programs and writes a \
               log. Its script polls the memory every 20 ms, so its figures may be up to 20 ms \
               too long. Except in the row of a guest that has just booted, 2 GiB were plugged \
               into each guest and unplugged again before a row with Linux was measured.",
    not_measured: "No guest has had memory plugged by a host that uses hardware virtualization. \
               Linux is version 6.1 of Debian, with at most 64 GiB plugged; a newer Linux has \
               not been measured.",
    steps: &[
        step("vm")
            .needs(Requirement::GuestAndLinux(Drivers::Virtio))
            .standard(
                "vm --guests hotmem-64B,linux,hotmem --sizes 4G,16G,64G --touch 0 --runs 3",
                220,
            )
            .quick("vm --guests hotmem-64B,linux --sizes 2G,4G --touch 0 --runs 2", 50),
        step("vm-cold").needs(Requirement::GuestAndLinux(Drivers::Virtio)).standard(
            "vm --guests hotmem-64B,linux --sizes 16G --touch 0 --warm-up 0 --runs 2",
            27,
        ),
        step("vm-sizes")
            .needs(Requirement::Guest)
            .standard("vm --sizes 256G,512G,4T --touch 0 --warm-up 2G --runs 3", 12)
            .quick("vm --sizes 16G,64G,4T --touch 0 --warm-up 2G --runs 3", 10),
        step("vm-used")
            .needs(Requirement::Guest)
            .standard("vm --sizes 64G --touch 1G --warm-up 2G --runs 3", 42),
        step("vm-instructions")
            .needs(Requirement::GuestAndLinux(Drivers::Virtio))
            .standard("vm --guests hotmem-64B,linux --sizes 16G --touch 0 --runs 1 --icount", 34),
    ],
    rows: &[
        TIME.of(
            "*/online_movable/plug",
            "{} plugged into a guest, 64 bytes written for each frame",
        )
        .peers(LINUX)
        .subject("hotmem-64B")
        .in_step("vm")
        .headline("64G"),
        TIME.of("*/online_movable/unplug", "{} unplugged from that guest, none of it in use")
            .peers(LINUX)
            .subject("hotmem-64B")
            .in_step("vm")
            .headline("64G"),
        TIME.of(
            "*/online_movable/plug",
            "{} plugged into a guest that has just booted, 64 bytes written for each \
                 frame",
        )
        .peers(LINUX)
        .subject("hotmem-64B")
        .in_step("vm-cold"),
        INSTRUCTIONS.of(
            "*/online_movable/plug",
            "{} plugged into a guest, 64 bytes written for each frame: instructions",
        ),
        INSTRUCTIONS.of(
            "*/online_movable/unplug",
            "{} unplugged from that guest, none of it in use: instructions",
        ),
        TIME.of("*/online_movable/plug", "{} plugged into a guest without descriptors"),
        TIME.of("*/online_movable/unplug", "{} unplugged from a guest without descriptors"),
        TIME.of(
            "64G/online_movable/unplug-1G-checked",
            "64 GiB unplugged while 1 GiB of it is in use; the guest reads that part and \
                 frees it",
        ),
        TIME.of(
            "64G/online_movable/unplug-1G-dropped",
            "the same, but the guest frees the 1 GiB without reading it",
        ),
        TIME.of(
            "64G/online_movable/unplug-1G-migrated",
            "the same, but the guest moves the 1 GiB to other frames",
        ),
        FIRST_LINE.of("boot", "from the start of QEMU to the first line that the guest prints"),
    ],
    plots: &[
        Plot::new(
            "Plug, by size",
            (NAME, measure::TIME),
            GUESTS,
            Cases::Sizes("*/online_movable/plug"),
        ),
        Plot::new(
            "Unplug, by size",
            (NAME, measure::TIME),
            GUESTS,
            Cases::Sizes("*/online_movable/unplug"),
        ),
    ],
};
