//! The section about the slowest calls.

use super::section::{Cases, Plot, Row, Section};

const PEERS: &[(&str, &str)] = &[
    ("bitmap-allocator behind a spin lock", "bitmap-allocator"),
    ("buddy_system_allocator behind a spin lock", "buddy_system_allocator"),
];

pub(super) const SECTION: Section = Section {
    id: "tails",
    title: "The slowest calls",
    question: "How long do the slowest allocations and frees take, while another CPU allocates, plugs and \
               unplugs, reports free memory or isolates some? How does the longest call of the \
               control path depend on its budget?",
    published: "Allocators report means. Linux takes zone->lock for whole batches of frames, and \
               isolates a pageblock under it.",
    explanation: "The wall clock is read before and after each call. So the figures include the time \
              during which the host does not run the CPU. The limit is the time between two \
              readings of the clock with nothing between them, in the same run. While the \
              allocations and frees are measured, another CPU sleeps (nothing), allocates and \
              frees frames (traffic), plugs and unplugs 4 GiB (resize), reports free memory \
              (reports), isolates memory and releases it (isolation), or repeats resize, \
              reports and isolation in turn (all). In the runs with \"all\", the calls of the \
              control path are measured, too, in CPU time; \"add/64-pageblocks\" is the call \
              \"add\" with a budget of 64 pageblocks. The simulated host acknowledges reports at \
              once. The other allocators cannot resize, report or isolate memory. The rows \"the \
              slowest of all\" have no ratio, because the slowest of millions of calls differs \
              from run to run.",
    not_measured: "In a virtual machine, the host interrupts a CPU for longer than the calls take.",
    steps: &["tails"],
    rows: &[
        Row {
            title: "allocating a frame, 99.9th percentile; another CPU does: {}",
            bench: "tails",
            case: "16G/*/alloc",
            metric: "p99.9",
            peers: PEERS,
            limit: "limit",
            ..Row::DEFAULT
        },
        Row {
            title: "allocating a frame, the slowest of all; another CPU does: {}",
            bench: "tails",
            case: "16G/*/alloc",
            metric: "longest",
            peers: PEERS,
            limit: "limit",
            is_extreme: true,
            ..Row::DEFAULT
        },
        Row {
            title: "freeing a frame, 99.9th percentile; another CPU does: {}",
            bench: "tails",
            case: "16G/*/free",
            metric: "p99.9",
            peers: PEERS,
            limit: "limit",
            ..Row::DEFAULT
        },
        Row {
            title: "freeing a frame, the slowest of all; another CPU does: {}",
            bench: "tails",
            case: "16G/*/free",
            metric: "longest",
            peers: PEERS,
            limit: "limit",
            is_extreme: true,
            ..Row::DEFAULT
        },
        Row {
            title: "the longest single call of the control path (call/budget): {}",
            bench: "tails",
            case: "16G/all/*/*",
            metric: "longest_call",
            ..Row::DEFAULT
        },
        Row {
            title: "the longest single call of the reporter: {}",
            bench: "tails",
            case: "16G/all/*",
            metric: "longest_call",
            ..Row::DEFAULT
        },
    ],
    plots: &[
        Plot {
            title: "Allocating a frame, 99.9th percentile",
            bench: "tails",
            metric: "p99.9",
            cases: Cases::Named(&[
                ("16G/nothing/alloc", "nothing beside"),
                ("16G/traffic/alloc", "traffic"),
                ("16G/resize/alloc", "a resize"),
                ("16G/reports/alloc", "reports"),
                ("16G/isolation/alloc", "isolation"),
                ("16G/all/alloc", "all three in turn"),
            ]),
            subjects: &[
                ("hotmem", "hotmem"),
                ("bitmap-allocator", "bitmap-allocator"),
                ("buddy_system_allocator", "buddy_system_allocator"),
                ("the clock alone", "limit"),
            ],
            is_logarithmic: true,
        },
        Plot {
            title: "The longest call for an unplug, by its budget",
            bench: "tails",
            metric: "longest_call",
            cases: Cases::Numbers {
                case: "16G/all/unplug/*",
                axis: "budget (pageblocks)",
                is_logarithmic: true,
            },
            subjects: &[("hotmem", "hotmem")],
            is_logarithmic: true,
        },
    ],
};
