//! The section of the report about the memory of CXL devices.

use super::{NAME, TIME};
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};
use crate::linux::Drivers;
use crate::qemu::Architecture;

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const SUBJECTS: &[(&str, &str)] = &[("hotmem", "hotmem"), ("Linux", "linux")];
const DURATION: Row = Row::new(NAME, TIME).peers(LINUX);

pub(crate) const SECTION: Section = Section {
    id: "cxl",
    title: "Memory of CXL devices made RAM, and device memory again",
    question: "An administrator makes the memory of CXL devices RAM by daxctl, and device memory again. \
               How long does each take by the policies online, online_movable and offline?",
    published: "The patch \"mm: optimize zone->contiguous updates\" was measured so, on Samsung's \
               devices of 128 GiB: 256 GiB became RAM in 4.4 s instead of 6.7 by the policy online, \
               and in 4.4 s instead of 4.5 by online_movable; 512 GiB in 8.7 s instead of 18, and in \
               6.6 s instead of 18.6. They became device memory in 2.6 and 4.2 to 5 s.",
    explanation: "The devices are QEMU's, and addresses alternate between all of them. Both guests keep \
               the descriptors of the memory in their own RAM. Those of Linux are 64 bytes for each \
               frame; in the guest hotmem the tails of compounds of 1 GiB share one frame of \
               descriptors, and RAM needs none. Linux's time is that of the command daxctl, with its start; the \
               guest hotmem takes a command of the lab. By the policy offline, the command itself \
               brings the memory online. Linux adds whole blocks of 2 GiB and may leave out one of \
               them.",
    not_measured: "No CXL device of a real machine has been measured. Linux is Debian's version 6.12, \
               which has no patch for zone->contiguous.",
    steps: &[step("cxl")
        .needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Cxl))
        .standard("cxl --guests hotmem,linux --measures time --rounds 5 --limit 300", 800)],
    rows: &[
        DURATION.of("*/*/to_ram", "memory of CXL devices made RAM (devices, policy {})"),
        DURATION.of("*/*/to_device", "that RAM made device memory again (devices, policy {})"),
    ],
    plots: &[Plot::new(
        "Time to make the memory of CXL devices RAM, by policy",
        (NAME, TIME),
        SUBJECTS,
        Cases::Named(&[
            ("2x128GiB/online/to_ram", "256 GiB, online"),
            ("2x128GiB/online_movable/to_ram", "256 GiB, online_movable"),
            ("2x128GiB/offline/to_ram", "256 GiB, offline"),
            ("4x128GiB/online/to_ram", "512 GiB, online"),
            ("4x128GiB/online_movable/to_ram", "512 GiB, online_movable"),
            ("4x128GiB/offline/to_ram", "512 GiB, offline"),
        ]),
    )],
};
