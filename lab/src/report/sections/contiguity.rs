//! Document 000: is the zone contiguous?

use super::section::{Cases, Plot, Row, Section};

const WALK: &[(&str, &str)] = &[("walking the zone", "before")];
const BOTH: &[(&str, &str)] = &[("hotmem", "hotmem"), ("walking the zone", "before")];

pub(super) const SECTION: Section = Section {
    id: "contiguity",
    title: "Whether a zone is contiguous (document 000)",
    question: "After each block of 128 MiB that is plugged, a kernel asks whether the zone is \
               contiguous. What does the answer cost as the zone grows?",
    reported: "Linux walks the zone pageblock by pageblock after each block. The patch \"mm: optimize \
               zone->contiguous updates\" counts instead: 256 GiB plugged in 3 s instead of 10, 512 \
               GiB in 7 s instead of 36, in a VM on hardware.",
    differs: "The peer is the same engine with Linux's algorithm in place of the count, in this \
              process, without page tables and descriptors: it is the algorithms that are compared, \
              not the kernels. What is looked at is counted by both, for each reads of a zone's \
              state, a section's words or a pageblock.",
    hardware: "The documents' own machines, a VM with 512 GiB and CXL memory, have not been measured.",
    steps: &["contiguity", "contiguity-large", "contiguity-pc"],
    rows: &[
        Row {
            what: "{} plugged in blocks, contiguity asked after each",
            bench: "contiguity",
            case: "#/online_movable/plug",
            peers: WALK,
            headline: "512G",
            ..Row::NONE
        },
        Row {
            what: "the same, {}: words or pageblocks looked at",
            bench: "contiguity",
            case: "#/online_movable/plug",
            metric: "probes",
            peers: WALK,
            ..Row::NONE
        },
        Row {
            what: "{} unplugged from the top",
            bench: "contiguity",
            case: "#/online_movable/unplug",
            peers: WALK,
            ..Row::NONE
        },
        Row {
            what: "{} unplugged from both ends of a zone with a hole",
            bench: "contiguity",
            case: "#/online_movable/unplug-ends",
            peers: WALK,
            ..Row::NONE
        },
        Row {
            what: "{} scanned for what is in use, knowing that the zone is contiguous",
            bench: "contiguity",
            case: "#/online_movable/scan",
            peers: &[("asking each pageblock", "before")],
            ..Row::NONE
        },
        Row {
            what: "64 GiB to 64 TiB plugged: time grows with the size to the power of",
            bench: "contiguity",
            case: "online_movable/plug",
            metric: "growth_exponent",
            step: "contiguity-large",
            peers: WALK,
            ..Row::NONE
        },
        Row {
            what: "256 GiB beside 2 GiB of boot memory on one node, policy online: looked at",
            bench: "contiguity",
            case: "pc-256G/online/plug",
            metric: "probes",
            peers: WALK,
            ..Row::NONE
        },
    ],
    plots: &[
        Plot {
            title: "Looked at while a zone is plugged, by size",
            bench: "contiguity",
            metric: "probes",
            cases: Cases::Sizes("#/online_movable/plug"),
            subjects: BOTH,
            log: true,
        },
        Plot {
            title: "Time to plug and ask, by size",
            bench: "contiguity",
            metric: "time",
            cases: Cases::Sizes("#/online_movable/plug"),
            subjects: BOTH,
            log: true,
        },
    ],
};
