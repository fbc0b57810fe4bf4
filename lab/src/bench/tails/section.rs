//! The section of the report about the slowest calls.

use super::NAME;
use crate::bench::section::{Cases, Plot, Row, Section, step};

const PEERS: &[(&str, &str)] = &[
    ("bitmap-allocator behind a spin lock", "bitmap-allocator"),
    ("buddy_system_allocator behind a spin lock", "buddy_system_allocator"),
];
const P99_9: Row = Row::new(NAME, super::P99_9).peers(PEERS).limit("limit");
const LONGEST: Row = Row::new(NAME, super::LONGEST).peers(PEERS).limit("limit");
const LONGEST_CALL: Row = Row::new(NAME, super::LONGEST_CALL);

pub(crate) const SECTION: Section = Section {
    id: "tails",
    title: "The slowest calls",
    question: "How long do the slowest allocations and frees take, while another CPU allocates, \
               plugs and unplugs, reports free memory or isolates some? How does the longest \
               call of the control path depend on its budget?",
    published: "Allocators report means. Linux takes zone->lock for whole batches of frames, and \
               isolates a pageblock under it.",
    explanation: "The wall clock is read before and after each call. So the figures include the \
               time during which the host does not run the CPU. The limit is the time between \
               two readings of the clock with nothing between them, in the same run. While the \
               allocations and frees are measured, another CPU sleeps (nothing), allocates and \
               frees frames (traffic), plugs and unplugs 4 GiB (resize), reports free memory \
               (reports), isolates memory and releases it (isolation), or repeats resize, \
               reports and isolation in turn (all). In the runs with \"all\", the calls of the \
               control path are measured, too, in CPU time; \"add/64-pageblocks\" is the call \
               \"add\" with a budget of 64 pageblocks. The simulated host acknowledges reports \
               at once. The other allocators cannot resize, report or isolate memory. The rows \
               \"the slowest of all\" have no ratio, because the slowest of millions of calls \
               differs from run to run.",
    not_measured: "In a virtual machine, the host interrupts a CPU for longer than the calls take.",
    steps: &[step("tails")
        .standard("tails --size 16G --runs 3", 26)
        .twice()
        .quick("tails --size 16G --operations 200000 --beside nothing,all --runs 1", 5)],
    rows: &[
        P99_9.of("16G/*/alloc", "allocating a frame, 99.9th percentile; another CPU does: {}"),
        LONGEST
            .of("16G/*/alloc", "allocating a frame, the slowest of all; another CPU does: {}")
            .extreme(),
        P99_9.of("16G/*/free", "freeing a frame, 99.9th percentile; another CPU does: {}"),
        LONGEST
            .of("16G/*/free", "freeing a frame, the slowest of all; another CPU does: {}")
            .extreme(),
        LONGEST_CALL
            .of("16G/all/*/*", "the longest single call of the control path (call/budget): {}"),
        LONGEST_CALL.of("16G/all/*", "the longest single call of the reporter: {}"),
    ],
    plots: &[
        Plot::new(
            "Allocating a frame, 99.9th percentile",
            (NAME, super::P99_9),
            &[
                ("hotmem", "hotmem"),
                ("bitmap-allocator", "bitmap-allocator"),
                ("buddy_system_allocator", "buddy_system_allocator"),
                ("the clock alone", "limit"),
            ],
            Cases::Named(&[
                ("16G/nothing/alloc", "nothing beside"),
                ("16G/traffic/alloc", "traffic"),
                ("16G/resize/alloc", "a resize"),
                ("16G/reports/alloc", "reports"),
                ("16G/isolation/alloc", "isolation"),
                ("16G/all/alloc", "all three in turn"),
            ]),
        ),
        Plot::new(
            "The longest call for an unplug, by its budget",
            (NAME, super::LONGEST_CALL),
            &[("hotmem", "hotmem")],
            Cases::Numbers {
                case: "16G/all/unplug/*",
                axis: "budget (pageblocks)",
                is_logarithmic: true,
            },
        ),
    ],
};
