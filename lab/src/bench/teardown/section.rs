//! The section of the report about clearing page tables under Xen PV and natively.

use super::{NAME, args, xen};
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};

const TRAP_AND_READ: &[(&str, &str)] = &[
    ("an atomic exchange of each entry (traps)", "before"),
    ("read first, then cleared", "read-then-clear"),
];
const TRAP: &[(&str, &str)] = &[("an atomic exchange of each entry (traps)", "before")];
const READ: &[(&str, &str)] = &[("read first, then cleared", "read-then-clear")];
const ORDER: &[(&str, &str)] = &[("Linux's order, reimplemented", "linux-order")];
const MUNMAP: &[(&str, &str)] = &[
    ("an atomic exchange of each entry that is not empty, as Linux does", "before, tested first"),
    ("an atomic exchange of each entry", "before"),
];
const FULL: &[(&str, &str)] = &[
    ("each entry read and cleared by a plain store, as Linux does", "linux-full"),
    ("an atomic exchange of each entry", "before"),
];
const INSTRUCTIONS: Row = Row::new(NAME, xen::INSTRUCTIONS).peers(TRAP_AND_READ);
const LOST: Row = Row::new(NAME, xen::LOST_DIRTY).peers(READ);
const SHARE: Row = Row::new(NAME, xen::UNMAPPING_SHARE).peers(TRAP);
const FLUSHES: Row = Row::new(NAME, xen::FLUSH_INTERRUPTS).peers(ORDER);
const CYCLES: Row = Row::new(NAME, args::CYCLES).peers(MUNMAP);

pub(crate) const SECTION: Section = Section {
    id: "teardown",
    title: "Page tables cleared",
    question: "Under Xen PV, clearing a page-table entry atomically traps. What does an entry \
               cost if one hypercall clears hundreds of them, and are dirty bits lost?",
    published: "The thread \"unmap_page_range optimisation\" (xen-devel, February 2026) reports \
               3.27 s with traps and 0.76 s by reading and then clearing, which is not atomic. \
               It also reports that the sender of a migration spends 45 % of its time in traps.",
    explanation: "Xen 4.17 runs under TCG with two CPUs; instructions are counted while the CPUs \
               take turns. A trap costs more cycles on hardware than its number of instructions \
               suggests. \"batch-32\" has 32 entries in each hypercall, and \"tables-8\" has 8 \
               L1 tables. Hotmem clears entries by a hypercall that keeps their Accessed and \
               Dirty bits (docs/xen-pv-teardown.md). One peer exchanges each entry atomically; \
               each exchange traps into Xen, as in the thread \"unmap_page_range \
               optimisation\". Another peer first reads the entries and then clears them by a \
               hypercall, which is not atomic. At the end of an address space, the peer uses \
               the order of Linux's xen_exit_mmap, which was reimplemented for this bench. The \
               share of the instructions that unmap is that of a probe, which maps, reads and \
               unmaps memory of another domain and does nothing else: it is not the share of a \
               migration. In the native rows, no processor walks the tables, and flushes are \
               only counted. Hotmem frees tables that the range covers with their entries in \
               them; in the rows \"the tables kept\" it clears each entry. The native peers are \
               reimplementations too: for a munmap Linux exchanges each entry that is not \
               empty, and at the end of an address space it reads each entry and clears it by a \
               plain store. Linux also finds the page of each entry and drops its references, \
               which no native row does.",
    not_measured: "A migration, Xen on hardware, a domU, shadow mode, superpages and more than two \
               CPUs have not been tried.",
    steps: &[
        step("teardown-native")
            .standard("teardown --cases native", 5)
            .quick("teardown --cases native --runs 3", 5),
        step("teardown-xen")
            .needs(Requirement::Xen)
            .standard(
                "teardown --cases xen-munmap/xpti-on,xen-migrate/xpti-on,xen-exit/xpti-on --runs \
                 1",
                95,
            )
            .quick("teardown --cases xen-munmap/xpti-on --batches 32 --runs 1 --writes 0", 35),
    ],
    rows: &[
        INSTRUCTIONS.of(
            "xen-munmap/xpti-on/*",
            "a page unmapped under Xen PV, its dirty bit kept, {}: instructions",
        ),
        LOST.of(
            "xen-munmap/xpti-on/*",
            "dirty bits lost under Xen PV while another CPU writes, {}",
        ),
        SHARE.of(
            "xen-migrate/xpti-on/*",
            "memory of another domain mapped, read and unmapped, {}: share of the \
                 instructions that unmap",
        ),
        INSTRUCTIONS
            .of("xen-exit/xpti-on", "an address space ended under Xen PV: instructions a page")
            .peers(ORDER),
        FLUSHES.of(
            "xen-exit/xpti-on/*",
            "an address space ended, {}: interrupts that make the other CPU flush",
        ),
        CYCLES.of(
            "native-munmap-sparse",
            "unmapped natively, one page in 64 mapped: cycles an entry",
        ),
        CYCLES
            .of(
                "native-munmap-sparse",
                "unmapped natively, one page in 64 mapped, the tables kept: cycles an entry",
            )
            .subject("hotmem, tables kept"),
        CYCLES.of("native-munmap-dense", "unmapped natively, all pages mapped: cycles an entry"),
        CYCLES
            .of(
                "native-munmap-dense",
                "unmapped natively, all pages mapped, the tables kept: cycles an entry",
            )
            .subject("hotmem, tables kept"),
        CYCLES.of("native-exit", "an address space ended natively: cycles an entry").peers(FULL),
    ],
    plots: &[
        Plot::new(
            "Cycles an entry under Xen, by the entries of a hypercall",
            (NAME, args::CYCLES),
            &[
                ("hotmem", "hotmem"),
                ("an atomic exchange of each entry", "before"),
                ("read first, then cleared", "read-then-clear"),
            ],
            Cases::Numbers {
                case: "xen-munmap/xpti-on/batch-*",
                axis: "entries in a hypercall",
                is_logarithmic: true,
            },
        ),
        Plot::new(
            "Cycles an entry, natively",
            (NAME, args::CYCLES),
            &[
                ("hotmem", "hotmem"),
                ("hotmem, tables kept", "hotmem, tables kept"),
                ("an atomic exchange of each entry", "before"),
            ],
            Cases::Named(&[
                ("native-munmap-sparse", "one in 64 mapped"),
                ("native-munmap-dense", "all mapped"),
                ("native-munmap-clean", "none dirty"),
                ("native-exit", "address space ended"),
            ]),
        )
        .linear(),
    ],
};
