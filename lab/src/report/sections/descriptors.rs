//! The section about page descriptors of device memory, which are written by stores that bypass the
//! caches.

use super::section::{Cases, Plot, Row, Section};

const FIELD_BY_FIELD: &[(&str, &str)] = &[("field by field", "before")];
const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("the machine's limit", "limit"),
    ("field by field", "before"),
    ("the template by ordinary stores", "template"),
];

pub(super) const SECTION: Section = Section {
    id: "descriptors",
    title: "Page descriptors of device memory",
    question: "A device of 100 GiB needs 1.6 GB of page descriptors each time that it is bound. How \
               close does writing them come to the bandwidth of the memory?",
    published: "The series \"mm/zone_device: template-based memmap init\" reports for 100 GB in a VM \
               on Ice Lake 273.5 ms before and 114.3 ms after for single pages, 313.5 and 99.4 ms \
               for pages of 2 MiB.",
    explanation: "The rows write the descriptors of 100 GiB of device memory, which a kernel does when \
              it binds the device. In the rows \"first\", nothing has accessed the memory of the \
              descriptors before. So while the descriptors are written, the host allocates this \
              memory in pages of 2 MiB and clears it; in the rows \"first-4K\", in pages of 4 KiB. \
              In the rows \"rebind\", the memory holds the descriptors of an earlier bind. Hotmem \
              makes one descriptor, the template, and copies it to the others, as the series \
              \"mm/zone_device: template-based memmap init\" does. It copies by ordinary stores if \
              the host has just cleared the memory, and by stores that bypass the caches if the \
              memory holds older descriptors. One peer in this process writes each field of each \
              descriptor in the order of Linux's __init_zone_device_page; the rows with \
              instructions show how far its work is from Linux's in a guest. Another copies the \
              template by ordinary stores. The descriptors of a \
              page of 2 MiB fill eight frames. With \"shared tails\", all pages of 2 MiB share one \
              frame in place of seven of their eight, so only one frame of descriptors is written \
              for each page. The limit is the time that the fastest stores take to fill the same \
              memory with one byte in the same run. In the guests, \"fsdax\" has single frames, \
              \"devdax-2M\" has pages of 2 MiB, and \"devdax-2M-shared\" has pages of 2 MiB with \
              shared tails. In a guest, Linux also sets up the pageblocks of its zone, and reports \
              its times in steps of 1 ms.",
    not_measured: "Real persistent memory has not been bound: QEMU's NVDIMM is ordinary memory.",
    steps: &["memmap", "memmap-instructions", "nvdimm", "nvdimm-instructions"],
    rows: &[
        Row {
            title: "descriptors of a device's memory written, for single frames ({})",
            bench: "memmap",
            case: "fsdax/*",
            peers: FIELD_BY_FIELD,
            limit: "limit",
            headline: Some("rebind"),
            ..Row::DEFAULT
        },
        Row {
            title: "descriptors written for single frames (rebind), on two CPUs",
            bench: "memmap",
            case: "fsdax/rebind/2cpus",
            peers: FIELD_BY_FIELD,
            limit: "limit",
            ..Row::DEFAULT
        },
        Row {
            title: "descriptors written for pages of 2 MiB ({})",
            bench: "memmap",
            case: "devdax-2M/*",
            peers: FIELD_BY_FIELD,
            limit: "limit",
            ..Row::DEFAULT
        },
        Row {
            title: "descriptors written for pages of 1 GiB ({})",
            bench: "memmap",
            case: "devdax-1G/*",
            peers: FIELD_BY_FIELD,
            limit: "limit",
            ..Row::DEFAULT
        },
        Row {
            title: "descriptors written for pages of 2 MiB with shared tails ({})",
            bench: "memmap",
            case: "devdax-2M-shared/*",
            peers: &[("the template by ordinary stores", "template")],
            ..Row::DEFAULT
        },
        Row {
            title: "descriptors written for single frames, by stores of general registers ({})",
            bench: "memmap",
            case: "fsdax/*",
            subject: "movnti",
            limit: "limit-movnti",
            ..Row::DEFAULT
        },
        Row {
            title: "instructions to describe a frame in this process ({})",
            bench: "memmap",
            case: "*/rebind",
            metric: "instructions_per_frame",
            peers: FIELD_BY_FIELD,
            ..Row::DEFAULT
        },
        Row {
            title: "instructions to describe a frame in a guest ({})",
            bench: "nvdimm",
            case: "*/rebind",
            metric: "instructions_per_frame",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "guest, an NVDIMM of 100 GiB bound again: its descriptors ({})",
            bench: "nvdimm",
            case: "*/rebind",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "the whole bind, page tables included ({})",
            bench: "nvdimm",
            case: "*/rebind",
            metric: "bind_time",
            peers: LINUX,
            ..Row::DEFAULT
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
        is_logarithmic: false,
    }],
};
