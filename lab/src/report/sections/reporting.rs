//! The section about free memory that is reported to the host.

use super::section::{Cases, Plot, Row, Section};

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const WITHOUT_REPORTS: &[(&str, &str)] = &[("the same without reports", "hotmem-no-reports")];
const LIMIT: &[(&str, &str)] = &[("hotmem", "hotmem"), ("one bare madvise", "limit")];
const PACKED: &[(&str, &str)] = &[
    ("hotmem-64B", "hotmem-64B"),
    ("hotmem", "hotmem"),
    ("Linux", "linux"),
    ("hotmem without reports", "hotmem-no-reports"),
];

pub(super) const SECTION: Section = Section {
    id: "reporting",
    title: "Free memory given back to the host",
    question: "A guest's free memory stays with the guest, unless the guest reports it to the host. How many \
               guests fit on a host, how soon does the host get free memory back, and what does \
               reporting cost the guest?",
    published: "The series \"mm: Support for page reporting\" (v12) fits 7 guests of 5 GB on a host \
               of 15 GB instead of 2, and makes page_fault1 with 24 CPUs 1 to 3 % slower.",
    explanation: "In the rows with \"host/guest\", the first size is the memory of the host, and the \
              second is the memory of each guest. The host is a memory cgroup if the user of the bench may create one. \
              Otherwise, in rows marked \"simulated\", the bench limits the memory of all guests \
              together. The guests are smaller than those of the series \"mm: Support for page \
              reporting\", so that the bench takes less time. The guest hotmem-64B writes 64 bytes \
              for each frame, as Linux does. The limit is the time of one madvise call for the same memory. \
              page_fault1 is the test of will-it-scale that allocates, clears and frees memory \
              again and again. In this bench it pauses after each burst long enough for its free memory to \
              be reported, so that the next burst faults the memory in again. In a burst, each thread \
              allocates, clears and frees 128 MiB once (\"rounds-1\") or 16 times (\"rounds-16\"); only \
              the first round faults memory in, so a burst of one round is the worst case. The \
              series measures bursts without pauses.",
    not_measured: "No guest has run with hardware virtualization, or on 24 CPUs. Linux is version 6.1.",
    steps: &["packing", "give-back", "page-fault"],
    rows: &[
        Row {
            title: "guests that fit on the host, 64 bytes written for each frame ({})",
            bench: "packing",
            case: "*/*",
            metric: "guests",
            subject: "hotmem-64B",
            peers: LINUX,
            more_is_better: true,
            ..Row::DEFAULT
        },
        Row {
            title: "guests that fit on the host, with and without reports ({})",
            bench: "packing",
            case: "*/*",
            metric: "guests",
            peers: WITHOUT_REPORTS,
            more_is_better: true,
            ..Row::DEFAULT
        },
        Row {
            title: "memory that the host holds for an idle guest, 64 bytes a frame (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "residual",
            subject: "hotmem-64B",
            peers: LINUX,
            headline: Some("1900M/1G"),
            ..Row::DEFAULT
        },
        Row {
            title: "memory that the host holds for an idle guest without descriptors (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "residual",
            peers: WITHOUT_REPORTS,
            ..Row::DEFAULT
        },
        Row {
            title: "from a guest's freeing memory until the host has it back (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "settle",
            subject: "hotmem-64B",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "an idle guest's share of a CPU (host/guest {})",
            bench: "packing",
            case: "*/*",
            metric: "idle",
            subject: "hotmem-64B",
            peers: LINUX,
            ..Row::DEFAULT
        },
        Row {
            title: "from freeing {} in random order until the host has it back",
            bench: "reporting",
            case: "give-back/*",
            limit: "limit",
            ..Row::DEFAULT
        },
        Row {
            title: "page_fault1 in a guest (threads/rounds {}): frames allocated in a second",
            bench: "reporting",
            case: "page_fault1/*/guest/*",
            metric: "rate",
            peers: WITHOUT_REPORTS,
            more_is_better: true,
            ..Row::DEFAULT
        },
        Row {
            title: "page_fault1 in this process (threads/rounds {}): frames allocated in a second",
            bench: "reporting",
            case: "page_fault1/*/hosted/*",
            metric: "rate",
            peers: WITHOUT_REPORTS,
            more_is_better: true,
            ..Row::DEFAULT
        },
    ],
    plots: &[
        Plot {
            title: "Memory held for all guests together, by their number",
            bench: "packing",
            metric: "held",
            cases: Cases::Numbers {
                case: "*/*/after-guest-*",
                axis: "guests",
                is_logarithmic: false,
            },
            subjects: PACKED,
            is_logarithmic: false,
        },
        Plot {
            title: "Time until the host has the memory back, by size",
            bench: "reporting",
            metric: "time",
            cases: Cases::Sizes("give-back/*"),
            subjects: LIMIT,
            is_logarithmic: true,
        },
    ],
};
