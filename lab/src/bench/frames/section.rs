//! The section of the report about the frame allocator.

use super::NAME;
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};

const PEERS: &[(&str, &str)] = &[
    ("bitmap-allocator behind a spin lock", "bitmap-allocator"),
    ("buddy_system_allocator behind a spin lock", "buddy_system_allocator"),
    ("LLFree", "LLFree"),
];
const SPIN_LOCKED: &[(&str, &str)] = &[
    ("bitmap-allocator behind a spin lock", "bitmap-allocator"),
    ("buddy_system_allocator behind a spin lock", "buddy_system_allocator"),
];
const BITMAP: &[(&str, &str)] = &[("bitmap-allocator behind a spin lock", "bitmap-allocator")];
const RUN_PEERS: &[(&str, &str)] = &[
    ("LLFree", "LLFree"),
    ("buddy-slab-allocator behind a spin lock", "buddy-slab-allocator"),
    ("buddy_system_allocator behind a spin lock", "buddy_system_allocator"),
    ("bitmap-allocator behind a spin lock", "bitmap-allocator"),
];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("bitmap-allocator", "bitmap-allocator"),
    ("buddy_system_allocator", "buddy_system_allocator"),
    ("LLFree", "LLFree"),
];
const TIME: Row = Row::new(NAME, super::TIME_PER_OP).peers(PEERS);
const INSTRUCTIONS: Row = Row::new(NAME, super::INSTRUCTIONS_PER_OP).peers(BITMAP);
const COUNTS: Row =
    Row::new(NAME, super::INSTRUCTIONS_PER_OP).in_step("frames-counts").peers(RUN_PEERS);
const MOST: Row =
    Row::new(NAME, super::MOST_INSTRUCTIONS).in_step("frames-counts").peers(RUN_PEERS).extreme();

pub(crate) const SECTION: Section = Section {
    id: "frames",
    title: "The frame allocator",
    question: "What does it cost to allocate and free a frame, by one thread and by two at \
               once? Does the cost grow with the order of the allocation or with the size of \
               the memory?",
    published: "LLFree (USENIX ATC '23) is a lock-free allocator; its times here were measured by \
               hand, as a subject of the same bench. The other peers are crates that kernels \
               use, behind a spin lock.",
    explanation: "docs/llfree.json has LLFree's version, date and commands. The other peers have \
               no zones and no nodes, and their memory can neither grow nor shrink. In the rows \
               with frees on another CPU and 2 threads, one thread allocates and the other \
               frees, and the time of each includes its waiting for the other. With 1 thread, \
               this thread acts as both CPUs, one after the other. A simulated interrupt comes \
               between two calls of the allocator; the figures do not include the cost of \
               masking interrupts while a lock is held. The limit is two compare-exchanges of \
               one word that no other CPU uses.",
    not_measured: "These rows have up to two CPUs; docs/benchmarks.md has a table of up to 12 CPUs.",
    steps: &[
        step("frames")
            .standard(
                "frames --tables basic --runs 3 --no-instructions",
                40,
            )
            .twice()
            .quick("frames --tables basic --accesses pair --lengths order0 --runs 3 --no-instructions", 10),
        step("frames-instructions")
            .needs(Requirement::Valgrind)
            .standard(
                "frames --tables basic --sizes 16G,64T --accesses pair,random,remote-free --lengths \
                 order0 --threads 1 --runs 1 --subjects hotmem,bitmap-allocator",
                51,
            )
            .quick(
                "frames --tables basic --accesses pair --lengths order0 --threads 1 --runs 1 \
                 --subjects hotmem,bitmap-allocator",
                15,
            ),
        step("frames-counts")
            .needs(Requirement::Valgrind)
            .standard("frames --tables runs,near-full,low,nodes --runs 0", 180),
    ],
    rows: &[
        TIME.of("16G/order0/*/pair", "one frame allocated and freed, {}")
            .limit("limit")
            .headline("1thread"),
        TIME.of("16G/order9/*/pair", "a page of 2 MiB allocated and freed, {}"),
        TIME.of("16G/order0/*/bulk", "many frames allocated, then freed, {}"),
        TIME.of("16G/order9/*/bulk", "many pages of 2 MiB allocated, then freed, {}"),
        TIME.of(
            "16G/order0/*/random",
            "a frame freed at random and one allocated, all memory in use, {}",
        )
        .peers(SPIN_LOCKED),
        TIME.of(
            "16G/order0/*/remote-free",
            "a frame allocated on one CPU and freed on another, {}",
        ),
        TIME.of(
            "16G/order9/*/remote-free",
            "a page of 2 MiB allocated on one CPU and freed on another, {}",
        ),
        TIME.of(
            "16G/order0/*/interrupts",
            "one frame allocated and freed, every 8th in a simulated interrupt, {}",
        )
        .peers(SPIN_LOCKED),
        TIME.of(
            "16G/order0-3-9/*/mixed",
            "an allocation freed at random and one made, 90 % frames, 9 % 32 KiB, 1 % 2 \
                 MiB, {}",
        )
        .peers(SPIN_LOCKED),
        INSTRUCTIONS.of("*/order0/1thread/pair", "one frame allocated and freed, {}: instructions"),
        INSTRUCTIONS.of(
            "*/order0/1thread/random",
            "a frame freed at random and one allocated, {}: instructions",
        ),
        INSTRUCTIONS.of(
            "*/order0/1thread/remote-free",
            "a frame allocated on one CPU and freed on another, {}: instructions",
        ),
        COUNTS.of(
            "16G/*/1thread/divided/pair",
            "a run allocated and freed, {}, a pageblock is divided already: instructions",
        ),
        COUNTS.of(
            "16G/*/1thread/pair",
            "a run allocated and freed, {}, nothing else is in use: instructions",
        ),
        COUNTS.of(
            "*/order0/1thread/used*/random",
            "a frame freed at random and one allocated, size/% in use {}: instructions",
        ),
        MOST.of(
            "*/order0/1thread/used*/random",
            "a frame freed at random and one allocated, size/% in use {}: instructions of the slowest \
                 of 4096",
        ),
        COUNTS.of(
            "*/order3/1thread/used*/random",
            "8 frames freed at random and 8 allocated, size/% in use {}: instructions",
        ),
        COUNTS.of(
            "64G/order0/1thread/low/pair",
            "a frame of the first 4 GiB of 64 GiB allocated and freed, nothing else is in use: \
                 instructions",
        ),
        COUNTS.of(
            "64G/order0/1thread/low/*/pair",
            "a frame of the first 4 GiB of 64 GiB allocated and freed, {}: instructions",
        ),
        COUNTS.of(
            "64G/*/1thread/low/*/refused",
            "a run of the first 4 GiB of 64 GiB refused, {}: instructions",
        ),
        COUNTS.of("64G/order0/1thread/all-used/refused", "a frame refused, all memory is in use: instructions"),
        COUNTS.of(
            "64G/order0/1thread/near-*/pair",
            "a frame near each of {} nodes in turn allocated and freed: instructions",
        ),
        COUNTS.of(
            "64G/order0/1thread/only-*/pair",
            "a frame of each of {} nodes in turn allocated and freed, other nodes refused: instructions",
        ),
    ],
    plots: &[
        Plot::new(
            "One frame allocated and freed, by threads",
            (NAME, super::TIME_PER_OP),
            SUBJECTS,
            Cases::Named(&[
                ("16G/order0/1thread/pair", "frame, 1 thread"),
                ("16G/order0/2threads/pair", "frame, 2 threads"),
                ("16G/order9/1thread/pair", "2 MiB, 1 thread"),
                ("16G/order9/2threads/pair", "2 MiB, 2 threads"),
            ]),
        ),
        Plot::new(
            "Instructions, by the size of the memory",
            (NAME, super::INSTRUCTIONS_PER_OP),
            &[("hotmem", "hotmem"), ("bitmap-allocator", "bitmap-allocator")],
            Cases::Sizes("*/order0/1thread/random"),
        ),
    ],
};
