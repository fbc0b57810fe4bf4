//! The section of the report about memory that must be zero.

use super::{NAME, TIME, goals, guest, touch};
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};
use crate::qemu::Architecture;

const PEERS: &[(&str, &str)] = &[
    ("zeroed again", "hotmem-no-marks"),
    ("not reported, dirty, zeroed", "resident"),
    ("not reported, zeroed when freed", "filled"),
];
const SUBJECTS: &[(&str, &str)] = &[
    ("reported, marked as zero", "hotmem"),
    ("reported, zeroed again", "hotmem-no-marks"),
    ("not reported, dirty, zeroed", "resident"),
    ("not reported, zeroed when freed", "filled"),
];
const PUBLISHED: &[(&str, &str)] = &[
    ("Linux's series, as published", "linux-published"),
    ("Linux without it, as published", "linux-published-no-marks"),
];
const WITHOUT_MARKS: &[(&str, &str)] = &[("without marks", "hotmem-no-marks")];
const TOUCH: Row = Row::new(NAME, TIME).peers(PEERS);
const FREE: Row = Row::new(NAME, touch::FREE_TIME).peers(PEERS);
const OTHER_FRAME: Row = Row::new(NAME, touch::OTHER_FRAME).peers(PEERS);
const INSTRUCTIONS: Row = Row::new(NAME, guest::INSTRUCTIONS).peers(PEERS);
const ROUND: Row = Row::new(NAME, guest::ROUND).peers(PEERS);
const ANSWERED: Row = Row::new(NAME, goals::ANSWERED).more_is_better();
const BACKED_AGAIN: Row = Row::new(NAME, goals::BACKED_AGAIN).peers(WITHOUT_MARKS);
const WHOLE: Row = Row::new(NAME, goals::WHOLE_PAGEBLOCKS).peers(WITHOUT_MARKS).more_is_better();

pub(crate) const SECTION: Section = Section {
    id: "zeroing",
    title: "Memory that must be zero, and that the host has zeroed",
    question: "The host zeroes reported memory before the guest uses it again. How much time does a \
               guest save that does not zero such memory a second time, and does it change which \
               memory is used?",
    published: "With the series \"mm/virtio: skip redundant zeroing of host-zeroed reported pages\" \
                (Michael S. Tsirkin, linux-mm, 2026), a process that touches 256 MiB in a guest of 2 GiB \
                with transparent huge pages takes 51 ± 26 ms of CPU time instead of 232 ± 20 ms. This is \
                of another machine.",
    explanation: "The memory is allocated in single frames that must be zero, and a word of each is \
                  written. Times of this process are CPU times. In rows with \"4k\" the host backs the \
                  memory by pages of 4 KiB, and in rows with \"thp\" by transparent huge pages. The \
                  host zeroes reported memory when the guest touches it. Memory that is not reported \
                  costs no fault, so it is allocated first, with marks as without. In rows of a load, \
                  requests of mixed sizes (\"mixed\") or for single frames (\"frames\") have mixed \
                  lifetimes, 10 to 60 % of 2 GiB are in use, and free memory is reported. Their time \
                  is simulated; the memory and what the host does are real. An oracle knows which \
                  frames the host has zeroed.",
    not_measured: "QEMU does not say yet that it zeroes reported memory, so the bench vouches for it. \
                   No guest has run with hardware virtualization.",
    steps: &[
        step("zeroing")
            .standard("zeroing --cases touch,load --runs 5 --load-runs 1", 90)
            .quick("zeroing --cases touch --runs 2", 10),
        step("zeroing-guest")
            .needs(Requirement::Guest(Architecture::X86_64))
            .standard("zeroing --cases guest --boots 2", 70),
    ],
    rows: &[
        TOUCH.of("touch/*/*", "memory of this process touched that was reported ({})"),
        FREE.of("touch/*/*", "the same memory freed ({})"),
        OTHER_FRAME.of(
            "touch/*/*",
            "one frame of it, after the first frame of its pageblock was touched ({})",
        ),
        INSTRUCTIONS.of(
            "guest/*",
            "a frame of a guest that was reported: allocated, touched and freed, instructions ({})",
        ),
        ROUND.of("guest/*/*", "memory of a guest touched that was reported, and freed ({})"),
        ANSWERED.of("load/*/*/*", "load: frames zeroed by the host that are known to be zero ({})"),
        BACKED_AGAIN.of("load/*/*/*", "load: pageblocks that the host had to back again ({})"),
        WHOLE.of("load/*/*/*", "load: pageblocks that are free as a whole, of 1024 ({})"),
    ],
    plots: &[
        Plot::new(
            "256 MiB of this process touched",
            (NAME, TIME),
            SUBJECTS,
            Cases::Named(&[
                ("touch/256M/4k", "pages of 4 KiB"),
                ("touch/256M/thp", "transparent huge pages"),
            ]),
        )
        .linear(),
        Plot::new(
            "A frame of a guest allocated, touched and freed",
            (NAME, guest::INSTRUCTIONS),
            SUBJECTS,
            Cases::Named(&[("guest/256M", "256 MiB of frames")]),
        )
        .linear(),
        Plot::new(
            "Linux: 256 MiB of a guest touched, as published (another machine)",
            (NAME, TIME),
            PUBLISHED,
            Cases::Named(&[("published/256M/thp", "transparent huge pages")]),
        )
        .linear(),
    ],
};
