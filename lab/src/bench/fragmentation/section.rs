//! The section of the report about fragmentation: how much of the free memory is in whole
//! pageblocks.

use super::NAME;
use crate::bench::section::{Cases, Plot, Row, Section, step};

const PEERS: &[(&str, &str)] =
    &[("buddy_system_allocator", "buddy_system_allocator"), ("LLFree", "LLFree")];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("buddy_system_allocator", "buddy_system_allocator"),
    ("LLFree", "LLFree"),
];
const WHOLE: Row = Row::new(NAME, super::FREE_IN_WHOLE_PAGEBLOCKS).peers(PEERS).more_is_better();
const REFUSED: Row = Row::new(NAME, super::REFUSED[2]).peers(PEERS);
const UNUSED: Row = Row::new(NAME, super::UNUSED_BUT_NOT_FREE);

pub(crate) const SECTION: Section = Section {
    id: "fragmentation",
    title: "Fragmentation over time",
    question: "90 % of the memory is in use, most of it for a short time and some for a long \
               time. How much of the free memory is in whole pageblocks (2 MiB), which huge \
               pages and unplug need?",
    published: "LLFree (USENIX ATC '23) reports that it keeps more whole huge pages than Linux's \
               buddy allocator. buddy_system_allocator joins neighbours as soon as both are \
               free, and searches all of its free blocks.",
    explanation: "All allocators get the same requests: 90 % are of order 0, 9 % of order 3 and 1 \
               % of order 9. 90 % of the allocations are freed after a short time and the \
               others after a hundred times as long; both times are random. One thread acts as \
               each of the CPUs in turn, and each run has another seed. In hotmem each CPU \
               allocates from two pageblocks, one for single frames and one for runs; the buddy \
               allocator has no per-CPU data. A pageblock from which a CPU allocates does not \
               count as free, even if no frame of it is in use. The CPUs still allocate from \
               these pageblocks when the figures are taken.",
    not_measured: "Requests recorded in a real kernel have not been replayed.",
    steps: &[step("fragmentation")
        .standard("fragmentation --size 4G --operations 2000000 --runs 3", 12)
        .quick("fragmentation --size 4G --operations 100000 --runs 1", 5)],
    rows: &[
        WHOLE.of("4G/*", "4 GiB: free memory in whole pageblocks at the end, {}"),
        REFUSED.of("4G/*", "requests for a pageblock that failed, {}"),
        UNUSED.of(
            "4G/*",
            "pageblocks with no frame in use that do not count as free, because CPUs \
                 allocate from them, {}",
        ),
    ],
    plots: &[
        Plot::new(
            "Free memory in whole pageblocks, 1 CPU",
            (NAME, super::FREE_IN_WHOLE_PAGEBLOCKS),
            SUBJECTS,
            Cases::Numbers { case: "4G/1cpu/after-*", axis: "operations", is_logarithmic: true },
        )
        .linear(),
        Plot::new(
            "Free memory in whole pageblocks, 16 CPUs",
            (NAME, super::FREE_IN_WHOLE_PAGEBLOCKS),
            SUBJECTS,
            Cases::Numbers { case: "4G/16cpus/after-*", axis: "operations", is_logarithmic: true },
        )
        .linear(),
    ],
};
