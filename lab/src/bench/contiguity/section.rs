//! The section of the report about finding out whether a zone is contiguous.

use super::{NAME, growth};
use crate::bench::section::{Cases, Plot, Row, Section, step};

const PEERS: &[(&str, &str)] = &[("walking the zone", "before")];
const SUBJECTS: &[(&str, &str)] = &[("hotmem", "hotmem"), ("walking the zone", "before")];
const TIME: Row = Row::new(NAME, growth::TIME).peers(PEERS);
const PROBES: Row = Row::new(NAME, growth::PROBES).peers(PEERS);
const GROWTH: Row = Row::new(NAME, growth::TIME_GROWTH).peers(PEERS);

pub(crate) const SECTION: Section = Section {
    id: "contiguity",
    title: "Whether a zone is contiguous",
    question: "After each block of 128 MiB that is plugged, a kernel asks whether the zone is \
               contiguous. How does the cost of the answer grow with the zone?",
    published: "Linux walks the zone pageblock by pageblock after each block. The patch \"mm: \
               optimize zone->contiguous updates\" counts instead: 256 GiB plugged in 3 s \
               instead of 10, 512 GiB in 7 s instead of 36, in a VM on hardware.",
    explanation: "Hotmem keeps a count, from which it knows whether a zone is contiguous, as the \
               patch \"mm: optimize zone->contiguous updates\" does. The peer is Hotmem's \
               engine without this count: instead it walks the zone pageblock by pageblock, as \
               Linux does. Both run in this process, without page tables and descriptors, so \
               the rows compare the algorithms and not the kernels. The rows that end in \
               \"reads\" count the reads that keep the answer up to date and that answer the \
               queries: reads of a zone's state, of the words of a section, of a word of a \
               tree, or of a pageblock.",
    not_measured: "A VM with 512 GiB, on which the patch was measured, and CXL memory have not been \
               measured.",
    steps: &[
        step("contiguity")
            .standard(
                "contiguity --sizes 64G,128G,256G --only-sizes --policies online_movable --runs 2",
                24,
            )
            .twice()
            .quick(
                "contiguity --sizes 16G,32G,64G --before-up-to 64G --policies online_movable \
                 --runs 3",
                10,
            ),
        step("contiguity-large")
            .standard(
                "contiguity --sizes 64G,512G,4T,64T --only-sizes --policies online_movable --runs \
                 1",
                45,
            )
            .twice(),
        step("contiguity-pc")
            .standard("contiguity --sizes 64G --before-up-to 256G --policies online --runs 1", 22),
    ],
    rows: &[
        TIME.of(
            "#/online_movable/plug",
            "{} plugged block by block, contiguity queried after each block",
        )
        .headline("512G"),
        PROBES.of(
            "#/online_movable/plug",
            "{} plugged block by block, contiguity queried after each block: reads",
        ),
        TIME.of("#/online_movable/unplug", "{} unplugged from the top"),
        TIME.of(
            "#/online_movable/unplug-ends",
            "{} unplugged from both ends of a zone with a hole",
        ),
        TIME.of(
            "#/online_movable/scan",
            "{} scanned for frames in use, where the zone is known to be contiguous",
        )
        .peers(&[("asking each pageblock", "before")]),
        GROWTH
            .of(
                "online_movable/plug",
                "64 GiB to 64 TiB plugged: exponent by which the time grows with the size",
            )
            .in_step("contiguity-large"),
        PROBES.of(
            "pc-256G/online/plug",
            "256 GiB plugged beside 2 GiB of boot memory on one node, brought online by \
                 policy \"online\": reads",
        ),
    ],
    plots: &[
        Plot::new(
            "Reads while a zone is plugged, by size",
            (NAME, growth::PROBES),
            SUBJECTS,
            Cases::Sizes("#/online_movable/plug"),
        ),
        Plot::new(
            "Time to plug and ask, by size",
            (NAME, growth::TIME),
            SUBJECTS,
            Cases::Sizes("#/online_movable/plug"),
        ),
    ],
};
