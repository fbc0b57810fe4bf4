//! The section of the report about LMBs of pseries partitions.

use super::{NAME, pseries};
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};

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
const TIME: Row = Row::new(NAME, super::TIME).peers(ONE_BY_ONE);
const INSTRUCTIONS: Row = Row::new(NAME, pseries::INSTRUCTIONS).peers(LINUX);

pub(crate) const SECTION: Section = Section {
    id: "lmbs",
    title: "Memory blocks of a pseries partition",
    question: "A partition of 31 TB has 126 976 logical memory blocks (LMBs), which are added \
               and removed by number. How does the cost for each LMB grow with their number?",
    published: "The patch \"pseries/hotplug-memory: hot-add: skip redundant LMB lookup\" reports \
               126 000 LMBs added in 12 450 s before and 7065 s after, on hardware.",
    explanation: "The peers use the same engine and the same simulated hypervisor, which answers \
               at once. They add one LMB after another, and keep the added ranges in a linear \
               list, as Linux keeps its resources. For each LMB, one of the peers also searches \
               the table of all LMBs linearly, as Linux does. The other one does not, like \
               Linux with the patch \"pseries/hotplug-memory: hot-add: skip redundant LMB \
               lookup\". So the difference between the peers is what the patch saves, and the \
               difference between the faster peer and Hotmem is what Hotmem saves beyond that. \
               On QEMU's pseries machine, Linux's figures include the printing of its log \
               messages.",
    not_measured: "PowerVM and real firmware have not been tried.",
    steps: &[
        step("dlpar")
            .standard("dlpar --cases 4096 --before-runs 2", 5)
            .twice()
            .quick("dlpar --cases 4096 --runs 3", 5),
        step("dlpar-all").standard("dlpar --cases 126000 --runs 3", 43).twice(),
        step("dlpar-million").standard("dlpar --cases 1000000 --runs 3", 4),
        step("dlpar-pseries")
            .needs(Requirement::Pseries)
            .standard("dlpar --cases pseries --runs 1", 50),
    ],
    rows: &[
        TIME.of("4096-of-126976/*", "4096 of 126 976 LMBs added, the {} ones"),
        TIME.of("126000-of-126976/*", "126 000 LMBs (31 TB) of a pseries partition: {}"),
        TIME.of("1000000/*", "a million LMBs: {}").peers(&[]),
        INSTRUCTIONS.of(
            "pseries-64G/add/*",
            "QEMU's pseries machine, 64 GiB: an LMB added, {}, instructions",
        ),
        INSTRUCTIONS.of(
            "pseries-64G/remove/*",
            "QEMU's pseries machine, 64 GiB: an LMB removed, {}, instructions",
        ),
    ],
    plots: &[Plot::new(
        "Time for an LMB, by the number that is added",
        (NAME, super::TIME_PER_LMB),
        SUBJECTS,
        Cases::Points {
            points: &[
                ("4096-of-126976/first", 4096.0),
                ("126000-of-126976/add", 126_000.0),
                ("1000000/add", 1_000_000.0),
            ],
            axis: "LMBs",
        },
    )],
};
