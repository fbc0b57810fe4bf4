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
    differs: "A clock on the wall is read before and after each call, so that what the host takes away is \
              in the figures; the limit is two readings with nothing between them at the same time. \
              Calls of the control path are measured by CPU time, while all of it is at work. The host \
              of the reporter answers at once. The other allocators can do nothing of this but allocate.",
    hardware: "The host's own interruptions, of a virtual machine, are longer than the calls.",
    steps: &["tails"],
    rows: &[
        Row {
            what: "a frame allocated, one in a thousand takes longer, beside: {}",
            bench: "tails",
            case: "16G/*/alloc",
            metric: "p99.9",
            peers: PEERS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "the same, the slowest of all, beside: {}",
            bench: "tails",
            case: "16G/*/alloc",
            metric: "longest",
            peers: PEERS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "a frame freed, one in a thousand takes longer, beside: {}",
            bench: "tails",
            case: "16G/*/free",
            metric: "p99.9",
            peers: PEERS,
            limit: "limit",
            ..Row::NONE
        },
        Row {
            what: "the same, the slowest of all, beside: {}",
            bench: "tails",
            case: "16G/*/free",
            metric: "longest",
            peers: PEERS,
            limit: "limit",
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
            title: "A frame allocated: one in a thousand takes longer",
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
