//! The section about document 001: page descriptors of device memory, written past the caches.

use super::section::{Cases, Plot, Row, Section};

const FIELDS: &[(&str, &str)] = &[("field by field", "before")];
const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("the machine's limit", "limit"),
    ("field by field", "before"),
    ("template, ordinary stores", "template"),
];

pub(super) const SECTION: Section = Section {
    id: "descriptors",
    title: "Page descriptors of device memory (document 001)",
    question: "A device of 100 GiB needs 1.6 GB of page descriptors each time that it is bound. How \
               close to the bandwidth of the memory are they written?",
    reported: "The series \"mm/zone_device: template-based memmap init\" reports for 100 GB in a VM \
               on Ice Lake 273.5 ms before and 114.3 ms after for single pages, 313.5 and 99.4 ms \
               for pages of 2 MiB.",
    differs: "The peer in this process writes the same descriptors field by field; the limit is the \
              fastest of all fills of the same memory, found in the same run. In a guest, Linux also \
              sets up the pageblocks of its zone, and reports its times in steps of 1 ms.",
    hardware: "Real persistent memory has not been bound: QEMU's NVDIMM is ordinary memory.",
    steps: &["memmap", "nvdimm"],
    rows: &[
        Row {
            what: "descriptors of a device's memory written, for single frames ({})",
            bench: "memmap",
            case: "fsdax/*",
            peers: FIELDS,
            limit: "limit",
            headline: "rebind",
            ..Row::NONE
        },
        Row {
            what: "descriptors written for single frames (rebind), on two CPUs",
            bench: "memmap",
            case: "fsdax/rebind/2cpus",
            peers: FIELDS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "descriptors written for pages of 2 MiB ({})",
            bench: "memmap",
            case: "devdax-2M/*",
            peers: FIELDS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "descriptors written for pages of 1 GiB ({})",
            bench: "memmap",
            case: "devdax-1G/*",
            peers: FIELDS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "descriptors written for pages of 2 MiB with shared tails ({})",
            bench: "memmap",
            case: "devdax-2M-shared/*",
            peers: &[("template, ordinary stores", "template")],
            ..Row::NONE
        },
        Row {
            what: "descriptors written for single frames, without vector registers ({})",
            bench: "memmap",
            case: "fsdax/*",
            ours: "movnti",
            limit: "limit-movnti",
            ..Row::NONE
        },
        Row {
            what: "guest, an NVDIMM of 100 GiB bound again: its descriptors ({})",
            bench: "nvdimm",
            case: "*/rebind",
            peers: LINUX,
            ..Row::NONE
        },
        Row {
            what: "the whole bind, page tables included ({})",
            bench: "nvdimm",
            case: "*/rebind",
            metric: "bind_time",
            peers: LINUX,
            ..Row::NONE
        },
    ],
    plots: &[Plot {
        title: "Descriptors written again at a rebind, and the machine's limit",
        bench: "memmap",
        metric: "time",
        cases: Cases::Named(&[
            ("fsdax/rebind", "single frames"),
            ("devdax-2M/rebind", "pages of 2 MiB"),
            ("devdax-1G/rebind", "pages of 1 GiB"),
            ("fsdax/rebind/2cpus", "single, 2 CPUs"),
        ]),
        subjects: SUBJECTS,
        log: false,
    }],
};
