//! The section of the report about DIMMs.

use super::{INSTRUCTIONS, NAME, TIME};
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};
use crate::linux::Drivers;
use crate::qemu::Architecture;

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const SUBJECTS: &[(&str, &str)] = &[("hotmem, no descriptors", "hotmem"), ("Linux", "linux")];
const DURATION: Row = Row::new(NAME, TIME).peers(LINUX);

pub(crate) const SECTION: Section = Section {
    id: "dimms",
    title: "DIMMs added and removed",
    question: "How long does it take until a guest uses the memory of DIMMs that its host inserts? \
               How long until it has given them back?",
    published: "No figures of others are known: the documents measure virtio-mem and CXL memory.",
    explanation: "QEMU announces a DIMM by ACPI. A time begins when QEMU has answered the command \
               that inserts the first DIMM, or that asks for it, and ends when the guest has accepted \
               the last DIMM by _OST, or when QEMU has deleted it. So it contains the interrupts and \
               QEMU's own work. The guest hotmem needs no descriptors and writes none; Linux writes 64 \
               bytes for each frame. The instructions are those of the guest that handle the \
               insertion: in Linux, those of the function acpi_device_hotplug.",
    not_measured: "No DIMM of a real machine has been measured, and no machine with hardware \
               virtualization.",
    steps: &[step("dimms")
        .needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Dimms))
        .standard("dimms --guests hotmem,linux", 330)],
    rows: &[
        DURATION.of("#/online_movable/insert", "{} of DIMMs inserted, until the guest uses them"),
        DURATION.of("#/online_movable/remove", "{} of DIMMs removed, none of it in use"),
        Row::new(NAME, INSTRUCTIONS)
            .peers(LINUX)
            .of("#/online_movable/insert", "{} of DIMMs inserted: instructions"),
    ],
    plots: &[Plot::new(
        "Time until DIMMs are in use, and until they are given back",
        (NAME, TIME),
        SUBJECTS,
        Cases::Named(&[
            ("1x1GiB/online_movable/insert", "1 GiB inserted"),
            ("1x1GiB/online_movable/remove", "1 GiB removed"),
            ("16x4GiB/online_movable/insert", "16 times 4 GiB inserted"),
            ("16x4GiB/online_movable/remove", "16 times 4 GiB removed"),
        ]),
    )],
};
