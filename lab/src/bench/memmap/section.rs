//! The section of the report about page descriptors of device memory, which are written by stores
//! that bypass the caches.

use super::{NAME, instructions};
use crate::bench::nvdimm;
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};
use crate::linux::Drivers;
use crate::qemu::Architecture;

const FIELD_BY_FIELD: &[(&str, &str)] = &[("field by field", "before")];
const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("the machine's limit", "limit"),
    ("field by field", "before"),
    ("the template by ordinary stores", "template"),
];
const TIME: Row = Row::new(NAME, super::TIME).peers(FIELD_BY_FIELD).limit("limit");
const INSTRUCTIONS: Row = Row::new(NAME, instructions::INSTRUCTIONS).peers(FIELD_BY_FIELD);
const GUEST_INSTRUCTIONS: Row = Row::new(nvdimm::NAME, nvdimm::INSTRUCTIONS).peers(LINUX);
const GUEST_TIME: Row = Row::new(nvdimm::NAME, nvdimm::TIME).peers(LINUX);
const BIND_TIME: Row = Row::new(nvdimm::NAME, nvdimm::BIND_TIME).peers(LINUX);

pub(crate) const SECTION: Section = Section {
    id: "descriptors",
    title: "Page descriptors of device memory",
    question: "A device of 100 GiB needs 1.6 GB of page descriptors each time that it is bound. \
               How close does writing them come to the bandwidth of the memory?",
    published: "The series \"mm/zone_device: template-based memmap init\" reports for 100 GB in \
               a VM on Ice Lake 273.5 ms before and 114.3 ms after for single pages, 313.5 and \
               99.4 ms for pages of 2 MiB.",
    explanation: "The rows write the descriptors of 100 GiB of device memory, which a kernel does \
               when it binds the device. In the rows \"first\", nothing has accessed the memory \
               of the descriptors before. So while the descriptors are written, the host \
               allocates this memory in pages of 2 MiB and clears it; in the rows \"first-4K\", \
               in pages of 4 KiB. In the rows \"rebind\", the memory holds the descriptors of \
               an earlier bind. Hotmem makes one descriptor, the template, and copies it to the \
               others, as the series \"mm/zone_device: template-based memmap init\" does. It \
               copies by ordinary stores if the host has just cleared the memory, and by stores \
               that bypass the caches if the memory holds older descriptors. One peer in this \
               process writes each field of each descriptor in the order of Linux's \
               __init_zone_device_page; the rows with instructions show how far its work is \
               from Linux's in a guest. Another copies the template by ordinary stores. The \
               descriptors of a page of 2 MiB fill eight frames. With \"shared tails\", all \
               pages of 2 MiB share one frame in place of seven of their eight, so only one \
               frame of descriptors is written for each page. The limit is the time that the \
               fastest stores take to fill the same memory with one byte in the same run. In \
               the guests, \"fsdax\" has single frames, \"devdax-2M\" has pages of 2 MiB, and \
               \"devdax-2M-shared\" has pages of 2 MiB with shared tails. In a guest, Linux \
               also sets up the pageblocks of its zone, and reports its times in steps of 1 ms.",
    not_measured: "Real persistent memory has not been bound: QEMU's NVDIMM is ordinary memory.",
    steps: &[
        step("memmap")
            .standard("memmap --size 100G --rebinds 15 --first-binds 1", 120)
            .twice()
            .quick("memmap --size 20G --rebinds 5 --first-binds 1", 15),
        step("memmap-instructions")
            .needs(Requirement::Valgrind)
            .standard("memmap --rebinds 0 --first-binds 0 --instructions", 60),
        step("nvdimm")
            .needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Nvdimm))
            .standard("nvdimm --guests hotmem,linux --rebinds 2 --measures time", 30)
            .twice(),
        step("nvdimm-instructions")
            .needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Nvdimm))
            .standard(
                "nvdimm --guests hotmem,linux --measures instructions --counted-rebinds 1",
                200,
            ),
    ],
    rows: &[
        TIME.of("fsdax/*", "descriptors of a device's memory written, for single frames ({})"),
        TIME.of(
            "fsdax/rebind/2cpus",
            "descriptors written for single frames (rebind), on two CPUs",
        ),
        TIME.of("devdax-2M/*", "descriptors written for pages of 2 MiB ({})"),
        TIME.of("devdax-1G/*", "descriptors written for pages of 1 GiB ({})"),
        TIME.of(
            "devdax-2M-shared/*",
            "descriptors written for pages of 2 MiB with shared tails ({})",
        )
        .peers(&[("the template by ordinary stores", "template")])
        .limit(""),
        TIME.of(
            "fsdax/*",
            "descriptors written for single frames, by stores of general registers ({})",
        )
        .peers(&[])
        .subject("movnti")
        .limit("limit-movnti"),
        INSTRUCTIONS.of("*/rebind", "instructions to describe a frame in this process ({})"),
        GUEST_INSTRUCTIONS.of("*/rebind", "instructions to describe a frame in a guest ({})"),
        GUEST_TIME.of("*/rebind", "guest, an NVDIMM of 100 GiB bound again: its descriptors ({})"),
        BIND_TIME.of("*/rebind", "the whole bind, page tables included ({})"),
    ],
    plots: &[Plot::new(
        "Descriptors written again at a rebind, and the machine's limit",
        (NAME, super::TIME),
        SUBJECTS,
        Cases::Named(&[
            ("fsdax/rebind", "single frames"),
            ("devdax-2M/rebind", "pages of 2 MiB"),
            ("devdax-1G/rebind", "pages of 1 GiB"),
            ("fsdax/rebind/2cpus", "single, 2 CPUs"),
        ]),
    )
    .linear()],
};
