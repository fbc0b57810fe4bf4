//! The sections about the frame allocator and the kernel heap.

use super::section::{Cases, Plot, Row, Section};

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
const HEAPS: &[(&str, &str)] =
    &[("talc", "talc"), ("buddy_system_allocator", "buddy_system_allocator")];
const SUBJECTS: &[(&str, &str)] = &[
    ("hotmem", "hotmem"),
    ("bitmap-allocator", "bitmap-allocator"),
    ("buddy_system_allocator", "buddy_system_allocator"),
    ("LLFree", "LLFree"),
];

pub(super) const FRAMES: Section = Section {
    id: "frames",
    title: "The frame allocator",
    question: "What does it cost to allocate and free a frame, by one thread and by two at once? \
               Does the cost grow with the order of the allocation or with the size of the memory?",
    published: "LLFree (USENIX ATC '23) is a lock-free allocator; its figures here were measured by \
               hand, as a subject of the same bench. The other peers are crates that kernels use, \
               behind a spin lock.",
    explanation: "docs/llfree.json has LLFree's version, date and commands. The other peers have no \
              zones and no nodes, and their memory can neither grow nor shrink. In the rows with \
              frees on another CPU and 2 threads, one thread allocates and the other frees, and \
              the time of each includes its waiting for the other. With 1 thread, this thread acts \
              as both CPUs, one after the other. A simulated interrupt comes between two calls of \
              the allocator; the figures do not include the cost of masking interrupts while a \
              lock is held. The limit is two compare-exchanges of one word that no other CPU uses.",
    not_measured: "These rows have up to two CPUs; docs/benchmarks.md has a table of up to 12 CPUs.",
    steps: &["frames", "frames-instructions"],
    rows: &[
        Row {
            title: "one frame allocated and freed, {}",
            bench: "frames",
            case: "16G/order0/*/pair",
            metric: "time_per_op",
            peers: PEERS,
            limit: "limit",
            headline: Some("1thread"),
            ..Row::DEFAULT
        },
        Row {
            title: "a page of 2 MiB allocated and freed, {}",
            bench: "frames",
            case: "16G/order9/*/pair",
            metric: "time_per_op",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "many frames allocated, then freed, {}",
            bench: "frames",
            case: "16G/order0/*/bulk",
            metric: "time_per_op",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "many pages of 2 MiB allocated, then freed, {}",
            bench: "frames",
            case: "16G/order9/*/bulk",
            metric: "time_per_op",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "a frame freed at random and one allocated, all memory in use, {}",
            bench: "frames",
            case: "16G/order0/*/random",
            metric: "time_per_op",
            peers: SPIN_LOCKED,
            ..Row::DEFAULT
        },
        Row {
            title: "a frame allocated on one CPU and freed on another, {}",
            bench: "frames",
            case: "16G/order0/*/remote-free",
            metric: "time_per_op",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "a page of 2 MiB allocated on one CPU and freed on another, {}",
            bench: "frames",
            case: "16G/order9/*/remote-free",
            metric: "time_per_op",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "one frame allocated and freed, every 8th in a simulated interrupt, {}",
            bench: "frames",
            case: "16G/order0/*/interrupts",
            metric: "time_per_op",
            peers: SPIN_LOCKED,
            ..Row::DEFAULT
        },
        Row {
            title: "an allocation freed at random and one made, 90 % frames, 9 % 32 KiB, 1 % 2 MiB, {}",
            bench: "frames",
            case: "16G/order0-3-9/*/mixed",
            metric: "time_per_op",
            peers: SPIN_LOCKED,
            ..Row::DEFAULT
        },
        Row {
            title: "one frame allocated and freed, {}: instructions",
            bench: "frames",
            case: "*/order0/1thread/pair",
            metric: "instructions_per_op",
            peers: BITMAP,
            ..Row::DEFAULT
        },
        Row {
            title: "a frame freed at random and one allocated, {}: instructions",
            bench: "frames",
            case: "*/order0/1thread/random",
            metric: "instructions_per_op",
            peers: BITMAP,
            ..Row::DEFAULT
        },
        Row {
            title: "a frame allocated on one CPU and freed on another, {}: instructions",
            bench: "frames",
            case: "*/order0/1thread/remote-free",
            metric: "instructions_per_op",
            peers: BITMAP,
            ..Row::DEFAULT
        },
    ],
    plots: &[
        Plot {
            title: "One frame allocated and freed, by threads",
            bench: "frames",
            metric: "time_per_op",
            cases: Cases::Named(&[
                ("16G/order0/1thread/pair", "frame, 1 thread"),
                ("16G/order0/2threads/pair", "frame, 2 threads"),
                ("16G/order9/1thread/pair", "2 MiB, 1 thread"),
                ("16G/order9/2threads/pair", "2 MiB, 2 threads"),
            ]),
            subjects: SUBJECTS,
            is_logarithmic: true,
        },
        Plot {
            title: "Instructions, by the size of the memory",
            bench: "frames",
            metric: "instructions_per_op",
            cases: Cases::Sizes("*/order0/1thread/random"),
            subjects: &[("hotmem", "hotmem"), ("bitmap-allocator", "bitmap-allocator")],
            is_logarithmic: true,
        },
    ],
};

pub(super) const HEAP: Section = Section {
    id: "heap",
    title: "A kernel's heap",
    question: "What does it cost to allocate and free a small object on a heap whose memory can be \
               unplugged? How does that compare with heaps that never give memory back?",
    published: "talc and buddy_system_allocator are heaps that kernels in Rust use; neither gives \
               memory back to the frame allocator.",
    explanation: "Each heap has 256 MiB and the same kind of spin lock; hotmem's has one lock for each CPU. \
              In the rows with many objects, 2000 exist at once. Times are the CPU time of each \
              thread.",
    not_measured: "Machines with more than two CPUs have not been measured.",
    steps: &["heap"],
    rows: &[
        Row {
            title: "an object of 64 bytes allocated and freed, {}",
            bench: "heap",
            case: "64B/*/pair",
            metric: "time_per_op",
            peers: HEAPS,
            headline: Some("1thread"),
            ..Row::DEFAULT
        },
        Row {
            title: "many objects of 64 bytes allocated, then freed, {}",
            bench: "heap",
            case: "64B/*/bulk",
            metric: "time_per_op",
            peers: HEAPS,
            ..Row::DEFAULT
        },
        Row {
            title: "many objects of 64 bytes allocated, then freed in random order, {}",
            bench: "heap",
            case: "64B/*/random",
            metric: "time_per_op",
            peers: HEAPS,
            ..Row::DEFAULT
        },
        Row {
            title: "an object of 1024 bytes allocated and freed, {}",
            bench: "heap",
            case: "1024B/*/pair",
            metric: "time_per_op",
            peers: HEAPS,
            ..Row::DEFAULT
        },
        Row {
            title: "many objects of 1024 bytes allocated, then freed, {}",
            bench: "heap",
            case: "1024B/*/bulk",
            metric: "time_per_op",
            peers: HEAPS,
            ..Row::DEFAULT
        },
    ],
    plots: &[Plot {
        title: "An object allocated and freed",
        bench: "heap",
        metric: "time_per_op",
        cases: Cases::Named(&[
            ("64B/1thread/pair", "64 B, one at a time"),
            ("64B/2threads/pair", "the same, 2 threads"),
            ("64B/1thread/bulk", "64 B, many"),
            ("64B/1thread/random", "64 B, any order"),
            ("1024B/1thread/bulk", "1024 B, many"),
        ]),
        subjects: &[
            ("hotmem", "hotmem"),
            ("talc", "talc"),
            ("buddy_system_allocator", "buddy_system_allocator"),
        ],
        is_logarithmic: true,
    }],
};
