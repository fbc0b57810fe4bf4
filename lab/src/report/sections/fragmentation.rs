//! The section about fragmentation: how much of the free memory is in whole pageblocks.

use super::section::{Cases, Plot, Row, Section};

const PEERS: &[(&str, &str)] =
    &[("buddy_system_allocator", "buddy_system_allocator"), ("LLFree", "LLFree")];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("buddy_system_allocator", "buddy_system_allocator"),
    ("LLFree", "LLFree"),
];

pub(super) const SECTION: Section = Section {
    id: "fragmentation",
    title: "Fragmentation over time",
    question: "90 % of the memory is in use, most of it for a short time and some for a long time. How \
               much of the free memory is in whole pageblocks (2 MiB), which huge pages and unplug \
               need?",
    published: "LLFree (USENIX ATC '23) reports that it keeps more whole huge pages than Linux's buddy \
               allocator. buddy_system_allocator joins neighbours as soon as both are free, and \
               searches all of its free blocks.",
    explanation: "All allocators get the same requests: 90 % are of order 0, 9 % of order 3 and 1 % of \
              order 9. 90 % of the allocations are freed after a short time and the others after a \
              hundred times as long; both times are random. One thread acts as each of the CPUs in \
              turn, and each run has another seed. In hotmem each CPU allocates from two \
              pageblocks, one for single frames and one for runs; the buddy allocator has no \
              per-CPU data. A pageblock from which a CPU allocates does not count as free, even \
              if no frame of it is in use. The CPUs still allocate from these pageblocks when the \
              figures are taken.",
    not_measured: "Requests recorded in a real kernel have not been replayed.",
    steps: &["fragmentation"],
    rows: &[
        Row {
            title: "4 GiB: free memory in whole pageblocks at the end, {}",
            bench: "fragmentation",
            case: "4G/*",
            metric: "free_in_whole_pageblocks",
            peers: PEERS,
            more_is_better: true,
            ..Row::DEFAULT
        },
        Row {
            title: "requests for a pageblock that failed, {}",
            bench: "fragmentation",
            case: "4G/*",
            metric: "refused_order_9",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "pageblocks with no frame in use that do not count as free, because CPUs allocate from them, {}",
            bench: "fragmentation",
            case: "4G/*",
            metric: "held_open",
            ..Row::DEFAULT
        },
    ],
    plots: &[
        Plot {
            title: "Free memory in whole pageblocks, 1 CPU",
            bench: "fragmentation",
            metric: "free_in_whole_pageblocks",
            cases: Cases::Numbers {
                case: "4G/1cpu/after-*",
                axis: "operations",
                is_logarithmic: true,
            },
            subjects: SUBJECTS,
            is_logarithmic: false,
        },
        Plot {
            title: "Free memory in whole pageblocks, 16 CPUs",
            bench: "fragmentation",
            metric: "free_in_whole_pageblocks",
            cases: Cases::Numbers {
                case: "4G/16cpus/after-*",
                axis: "operations",
                is_logarithmic: true,
            },
            subjects: SUBJECTS,
            is_logarithmic: false,
        },
    ],
};
