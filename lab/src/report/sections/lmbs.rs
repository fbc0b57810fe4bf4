//! The section about LMBs of pseries partitions.

use super::section::{Cases, Plot, Row, Section};

const ONE_BY_ONE: &[(&str, &str)] = &[
    ("one by one, without the look-up", "before-no-lookup"),
    ("one by one, with a look-up for each", "before"),
];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("one by one, without the look-up", "before-no-lookup"),
    ("one by one, with a look-up for each", "before"),
];
const LINUX: &[(&str, &str)] = &[("Linux", "linux")];

pub(super) const SECTION: Section = Section {
    id: "lmbs",
    title: "Memory blocks of a pseries partition",
    question: "A partition of 31 TB has 126 976 logical memory blocks (LMBs), which are added and \
               removed by number. How does the cost for each LMB grow with their number?",
    published: "The patch \"pseries/hotplug-memory: hot-add: skip redundant LMB lookup\" reports \
               126 000 LMBs added in 12 450 s before and 7065 s after, on hardware.",
    explanation: "The peers use the same engine and the same simulated hypervisor, which answers at \
              once. They add one LMB after another, and keep the added ranges in a linear list, as \
              Linux keeps its resources. For each LMB, one of the peers also searches the table of \
              all LMBs linearly, as Linux does. The other one does not, like Linux with the patch \
              \"pseries/hotplug-memory: hot-add: skip redundant LMB lookup\". So the difference \
              between the peers is what the patch saves, and the difference between the faster \
              peer and Hotmem is what Hotmem saves beyond that. On QEMU's pseries machine, Linux's \
              figures include the printing of its log messages.",
    not_measured: "PowerVM and real firmware have not been tried.",
    steps: &["dlpar", "dlpar-all", "dlpar-million", "dlpar-pseries"],
    rows: &[
        Row {
            title: "4096 of 126 976 LMBs added, the {} ones",
            bench: "dlpar",
            case: "4096-of-126976/*",
            peers: ONE_BY_ONE,
            ..Row::DEFAULT
        },
        Row {
            title: "126 000 LMBs (31 TB) of a pseries partition: {}",
            bench: "dlpar",
            case: "126000-of-126976/*",
            peers: ONE_BY_ONE,
            headline: Some("add"),
            ..Row::DEFAULT
        },
        Row { title: "a million LMBs: {}", bench: "dlpar", case: "1000000/*", ..Row::DEFAULT },
        Row {
            title: "QEMU's pseries machine, 64 GiB: an LMB added, {}, instructions",
            bench: "dlpar",
            case: "pseries-64G/add/*",
            metric: "instructions_per_lmb",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "QEMU's pseries machine, 64 GiB: an LMB removed, {}, instructions",
            bench: "dlpar",
            case: "pseries-64G/remove/*",
            metric: "instructions_per_lmb",
            peers: LINUX,
            ..Row::DEFAULT
        },
    ],
    plots: &[Plot {
        title: "Time for an LMB, by the number that is added",
        bench: "dlpar",
        metric: "time_per_lmb",
        cases: Cases::Points {
            points: &[
                ("4096-of-126976/first", 4096.0),
                ("126000-of-126976/add", 126_000.0),
                ("1000000/add", 1_000_000.0),
            ],
            axis: "LMBs",
        },
        subjects: SUBJECTS,
        is_logarithmic: true,
    }],
};
