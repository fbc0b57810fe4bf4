//! The section about finding out whether a zone is contiguous.

use super::section::{Cases, Plot, Row, Section};

const PEERS: &[(&str, &str)] = &[("walking the zone", "before")];
const SUBJECTS: &[(&str, &str)] = &[("hotmem", "hotmem"), ("walking the zone", "before")];

pub(super) const SECTION: Section = Section {
    id: "contiguity",
    title: "Whether a zone is contiguous",
    question: "After each block of 128 MiB that is plugged, a kernel asks whether the zone is \
               contiguous. How does the cost of the answer grow with the zone?",
    published: "Linux walks the zone pageblock by pageblock after each block. The patch \"mm: optimize \
               zone->contiguous updates\" counts instead: 256 GiB plugged in 3 s instead of 10, 512 \
               GiB in 7 s instead of 36, in a VM on hardware.",
    explanation: "Hotmem keeps a count, from which it knows whether a zone is contiguous, as the patch \
              \"mm: optimize zone->contiguous updates\" does. The peer is Hotmem's engine without \
              this count: instead it walks the zone pageblock by pageblock, as Linux does. Both \
              run in this process, without page tables and descriptors, so the rows compare the \
              algorithms and not the kernels. The rows that end in \"reads\" count the reads \
              that keep the answer up to date and that answer the queries: reads of a zone's \
              state, of the words of a section, of a word of a tree, or of a pageblock.",
    not_measured: "A VM with 512 GiB, on which the patch was measured, and CXL memory have not been \
               measured.",
    steps: &["contiguity", "contiguity-large", "contiguity-pc"],
    rows: &[
        Row {
            title: "{} plugged block by block, contiguity queried after each block",
            bench: "contiguity",
            case: "#/online_movable/plug",
            peers: PEERS,
            headline: Some("512G"),
            ..Row::DEFAULT
        },
        Row {
            title: "{} plugged block by block, contiguity queried after each block: reads",
            bench: "contiguity",
            case: "#/online_movable/plug",
            metric: "probes",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "{} unplugged from the top",
            bench: "contiguity",
            case: "#/online_movable/unplug",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "{} unplugged from both ends of a zone with a hole",
            bench: "contiguity",
            case: "#/online_movable/unplug-ends",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "{} scanned for frames in use, where the zone is known to be contiguous",
            bench: "contiguity",
            case: "#/online_movable/scan",
            peers: &[("asking each pageblock", "before")],
            ..Row::DEFAULT
        },
        Row {
            title: "64 GiB to 64 TiB plugged: exponent by which the time grows with the size",
            bench: "contiguity",
            case: "online_movable/plug",
            metric: "growth_exponent",
            step: "contiguity-large",
            peers: PEERS,
            ..Row::DEFAULT
        },
        Row {
            title: "256 GiB plugged beside 2 GiB of boot memory on one node, brought online by policy \"online\": reads",
            bench: "contiguity",
            case: "pc-256G/online/plug",
            metric: "probes",
            peers: PEERS,
            ..Row::DEFAULT
        },
    ],
    plots: &[
        Plot {
            title: "Reads while a zone is plugged, by size",
            bench: "contiguity",
            metric: "probes",
            cases: Cases::Sizes("#/online_movable/plug"),
            subjects: SUBJECTS,
            is_logarithmic: true,
        },
        Plot {
            title: "Time to plug and ask, by size",
            bench: "contiguity",
            metric: "time",
            cases: Cases::Sizes("#/online_movable/plug"),
            subjects: SUBJECTS,
            is_logarithmic: true,
        },
    ],
};
