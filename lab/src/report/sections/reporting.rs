//! Document 003: free memory goes back to the host.

use super::section::{Cases, Plot, Row, Section};

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const OFF: &[(&str, &str)] = &[("the same without reports", "hotmem-no-reports")];
const LIMIT: &[(&str, &str)] = &[("hotmem", "hotmem"), ("one bare madvise", "limit")];
const PACKED: &[(&str, &str)] = &[
    ("hotmem-64B", "hotmem-64B"),
    ("hotmem", "hotmem"),
    ("Linux", "linux"),
    ("hotmem without reports", "hotmem-no-reports"),
];

pub(super) const SECTION: Section = Section {
    id: "reporting",
    title: "Free memory given back to the host (document 003)",
    question: "Guests keep what they have used once, unless they report what is free. How many fit on \
               a host, how soon does it have its memory back, and what does reporting cost the guest?",
    reported: "The series \"mm: Support for page reporting\" (v12) packs 7 guests of 5 GB into a host \
               of 15 GB instead of 2, at 1 to 3 % less of page_fault1 with 24 CPUs.",
    differs: "A host is a memory cgroup where one may be made, otherwise a limit on what all guests \
              hold (\"simulated\"). Guests are smaller than the document's, so that a sitting ends. \
              The guest hotmem-64B writes 64 bytes a frame, as Linux does. page_fault1 runs in bursts \
              with rests between, so that each burst faults its memory in again.",
    hardware: "No guest was packed on a host without an emulator below it.",
    steps: &["packing", "give-back", "page-fault"],
    rows: &[
        Row {
            what: "guests that fit on the host, 64 bytes a frame ({})",
            bench: "packing",
            case: "*/*",
            metric: "guests",
            ours: "hotmem-64B",
            peers: LINUX,
            more_is_better: true,
            ..Row::NONE
        },
        Row {
            what: "memory of each idle guest that the host holds, 64 bytes a frame (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "residual",
            ours: "hotmem-64B",
            peers: LINUX,
            headline: "1900M/1G",
            ..Row::NONE
        },
        Row {
            what: "the same without descriptors (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "residual",
            peers: OFF,
            ..Row::NONE
        },
        Row {
            what: "from its freeing memory until the host has it (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "settle",
            ours: "hotmem-64B",
            peers: LINUX,
            ..Row::NONE
        },
        Row {
            what: "an idle guest, of a CPU (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "idle",
            ours: "hotmem-64B",
            peers: LINUX,
            ..Row::NONE
        },
        Row {
            what: "{} freed in random order, until the host has it",
            bench: "reporting",
            case: "give-back/*",
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "frames a second of a guest with one thread, each reported before",
            bench: "reporting",
            case: "page_fault1/1/guest/rounds-1",
            metric: "rate",
            peers: OFF,
            more_is_better: true,
            ..Row::NONE
        },
        Row {
            what: "the same in this process",
            bench: "reporting",
            case: "page_fault1/1/hosted/rounds-1",
            metric: "rate",
            peers: OFF,
            more_is_better: true,
            ..Row::NONE
        },
    ],
    plots: &[
        Plot {
            title: "Held by all guests together, guest after guest",
            bench: "packing",
            metric: "held",
            cases: Cases::Numbers { case: "*/*/after-guest-*", axis: "guests", log: false },
            subjects: PACKED,
            log: false,
        },
        Plot {
            title: "Given back, by size",
            bench: "reporting",
            metric: "time",
            cases: Cases::Sizes("give-back/*"),
            subjects: LIMIT,
            log: true,
        },
    ],
};
