//! The slowest calls.

use super::section::{Cases, Plot, Row, Section};

const PEERS: &[(&str, &str)] = &[
    ("bitmap-allocator behind a spin lock", "bitmap-allocator"),
    ("buddy_system_allocator behind a spin lock", "buddy_system_allocator"),
];

pub(super) const SECTION: Section = Section {
    id: "tails",
    title: "The slowest calls",
    question: "How long do the slowest allocations and frees take, while another CPU allocates, resizes \
               the machine, reports free memory or isolates some? How long can one call of the \
               control path take, by its budget?",
    reported: "Allocators report means. Linux takes zone->lock for whole batches of frames, and \
               isolates a pageblock under it.",
    differs: "The wall clock is read before and after each call, so the figures include the time that the \
              host takes away. The limit is two readings of the clock in the same run, with nothing \
              between them. Calls of the control path are measured by CPU time, while a resize, reports \
              and isolation run in turn. The reporter's host answers at once. The other allocators \
              cannot resize, report or isolate memory. The slowest of millions of calls is another one \
              each time, so no ratio of such figures is given.",
    hardware: "In a virtual machine, the host's interruptions last longer than the calls.",
    steps: &["tails"],
    rows: &[
        Row {
            what: "allocating a frame, 99.9th percentile, beside: {}",
            bench: "tails",
            case: "16G/*/alloc",
            metric: "p99.9",
            peers: PEERS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "allocating a frame, the slowest of all, beside: {}",
            bench: "tails",
            case: "16G/*/alloc",
            metric: "longest",
            peers: PEERS,
            limit: "limit",
            is_extreme: true,
            ..Row::NONE
        },
        Row {
            what: "freeing a frame, 99.9th percentile, beside: {}",
            bench: "tails",
            case: "16G/*/free",
            metric: "p99.9",
            peers: PEERS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "freeing a frame, the slowest of all, beside: {}",
            bench: "tails",
            case: "16G/*/free",
            metric: "longest",
            peers: PEERS,
            limit: "limit",
            is_extreme: true,
            ..Row::NONE
        },
        Row {
            what: "the longest single call, by its budget: {}",
            bench: "tails",
            case: "16G/all/*/*",
            metric: "longest_call",
            ..Row::NONE
        },
        Row {
            what: "the longest single call of the reporter: {}",
            bench: "tails",
            case: "16G/all/*",
            metric: "longest_call",
            ..Row::NONE
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
            log: true,
        },
        Plot {
            title: "The longest call that unplugs, by its budget",
            bench: "tails",
            metric: "longest_call",
            cases: Cases::Numbers {
                case: "16G/all/unplug/*",
                axis: "budget (pageblocks)",
                log: true,
            },
            subjects: &[("hotmem", "hotmem")],
            log: true,
        },
    ],
};
