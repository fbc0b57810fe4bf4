//! The section of the report about a kernel's heap.

use super::NAME;
use crate::bench::section::{Cases, Plot, Row, Section, step};

const HEAPS: &[(&str, &str)] =
    &[("talc", "talc"), ("buddy_system_allocator", "buddy_system_allocator")];
const TIME: Row = Row::new(NAME, super::TIME_PER_OP).peers(HEAPS);

pub(crate) const SECTION: Section = Section {
    id: "heap",
    title: "A kernel's heap",
    question: "What does it cost to allocate and free a small object on a heap whose memory can \
               be unplugged? How does that compare with heaps that never give memory back?",
    published: "talc and buddy_system_allocator are heaps that kernels in Rust use; neither \
               gives memory back to the frame allocator.",
    explanation: "Each heap has 256 MiB and the same kind of spin lock; hotmem's has one lock for \
               each CPU. In the rows with many objects, 2000 exist at once. Times are the CPU \
               time of each thread.",
    not_measured: "Machines with more than two CPUs have not been measured.",
    steps: &[step("heap")
        .standard("heap --sizes 64,1024 --runs 5", 35)
        .twice()
        .quick("heap --sizes 64 --runs 5 --burst 32M", 15)],
    rows: &[
        TIME.of("64B/*/pair", "an object of 64 bytes allocated and freed, {}"),
        TIME.of("64B/*/bulk", "many objects of 64 bytes allocated, then freed, {}"),
        TIME.of(
            "64B/*/random",
            "many objects of 64 bytes allocated, then freed in random order, {}",
        ),
        TIME.of("1024B/*/pair", "an object of 1024 bytes allocated and freed, {}"),
        TIME.of("1024B/*/bulk", "many objects of 1024 bytes allocated, then freed, {}"),
    ],
    plots: &[Plot::new(
        "An object allocated and freed",
        (NAME, super::TIME_PER_OP),
        &[
            ("hotmem", "hotmem"),
            ("talc", "talc"),
            ("buddy_system_allocator", "buddy_system_allocator"),
        ],
        Cases::Named(&[
            ("64B/1thread/pair", "64 B, one at a time"),
            ("64B/2threads/pair", "the same, 2 threads"),
            ("64B/1thread/bulk", "64 B, many"),
            ("64B/1thread/random", "64 B, any order"),
            ("1024B/1thread/bulk", "1024 B, many"),
        ]),
    )],
};
