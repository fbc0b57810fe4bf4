//! The section of the report about free memory that is reported to the host.

use super::{NAME, page_fault};
use crate::bench::packing;
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};
use crate::linux::Drivers;
use crate::qemu::Architecture;

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const WITHOUT_REPORTS: &[(&str, &str)] = &[("the same without reports", "hotmem-no-reports")];
const LIMIT: &[(&str, &str)] = &[("hotmem", "hotmem"), ("one bare madvise", "limit")];
const PACKED: &[(&str, &str)] = &[
    ("hotmem-64B", "hotmem-64B"),
    ("hotmem", "hotmem"),
    ("Linux", "linux"),
    ("hotmem without reports", "hotmem-no-reports"),
];
const PACKING: &str = packing::name(Architecture::X86_64);
const GUESTS: Row =
    Row::new(PACKING, packing::GUESTS).peers(LINUX).subject("hotmem-64B").more_is_better();
const RESIDUAL: Row =
    Row::new(PACKING, packing::RESIDENT_AFTER_FREE).peers(LINUX).subject("hotmem-64B");
const AARCH64_RESIDUAL: Row = Row { bench: packing::name(Architecture::Aarch64), ..RESIDUAL };
const SETTLE: Row = Row::new(PACKING, packing::SETTLE_TIME).peers(LINUX).subject("hotmem-64B");
const IDLE: Row = Row::new(PACKING, packing::IDLE).peers(LINUX).subject("hotmem-64B");
const TIME: Row = Row::new(NAME, super::TIME).limit("limit");
const RATE: Row =
    Row::new(NAME, page_fault::OPERATION_RATE).peers(WITHOUT_REPORTS).more_is_better();

pub(crate) const SECTION: Section = Section {
    id: "reporting",
    title: "Free memory given back to the host",
    question: "A guest's free memory stays with the guest, unless the guest reports it to the \
               host. How many guests fit on a host, how soon does the host get free memory \
               back, and what does reporting cost the guest?",
    published: "The series \"mm: Support for page reporting\" (v12) fits 7 guests of 5 GB on a \
               host of 15 GB instead of 2, and makes page_fault1 with 24 CPUs 1 to 3 % slower.",
    explanation: "In the rows with \"host/guest\", the first size is the memory of the host, and \
               the second is the memory of each guest. The host is a memory cgroup if the user \
               of the bench may create one. Otherwise, in rows marked \"simulated\", the bench \
               limits the memory of all guests together. The guests are smaller than those of \
               the series \"mm: Support for page reporting\", so that the bench takes less \
               time. The guest hotmem-64B writes 64 bytes for each frame, as Linux does. The \
               limit is the time of one madvise call for the same memory. page_fault1 is the \
               test of will-it-scale that allocates, clears and frees memory again and again. \
               In this bench it pauses after each burst long enough for its free memory to be \
               reported, so that the next burst faults the memory in again. In a burst, each \
               thread allocates, clears and frees 128 MiB once (\"rounds-1\") or 16 times \
               (\"rounds-16\"); only the first round faults memory in, so a burst of one round \
               is the worst case. The series measures bursts without pauses.",
    not_measured: "No guest has run with hardware virtualization, or on 24 CPUs. Linux is version \
               6.1.",
    steps: &[
        step("packing")
            .needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Virtio))
            .standard(
                "packing --guests linux,hotmem-64B,hotmem --host 1900M --guest 1G --touch \
                 600M..700M",
                450,
            )
            .quick(
                "packing --guests linux,hotmem-64B --host 1G --guest 512M --touch 200M..300M \
                 --max-guests 3",
                60,
            ),
        step("packing-aarch64")
            .needs(Requirement::GuestAndLinux(Architecture::Aarch64, Drivers::Virtio))
            .standard(
                "packing --arch aarch64 --guests linux,hotmem-64B --host 1900M --guest 1G --touch \
                 600M..700M --max-guests 2",
                100,
            ),
        step("give-back")
            .standard("reporting --cases give_back --give-back 1G,2G,4G --runs 3", 30)
            .quick("reporting --cases give_back --give-back 1G,2G --runs 3", 10),
        step("page-fault").needs(Requirement::Guest(Architecture::X86_64)).standard(
            "reporting --cases page_fault --threads 1,2 --rounds 1,16 --bursts 2 --runs 3 \
                 --boots 3 --no-instructions",
            400,
        ),
    ],
    rows: &[
        GUESTS.of("*/*", "guests that fit on the host, 64 bytes written for each frame ({})"),
        GUESTS
            .of("*/*", "guests that fit on the host, with and without reports ({})")
            .peers(WITHOUT_REPORTS)
            .subject("hotmem"),
        RESIDUAL
            .of(
                "*/*",
                "memory that the host holds for an idle guest, 64 bytes a frame (host/guest \
                 {})",
            )
            .headline("1900M/1G"),
        AARCH64_RESIDUAL.of(
            "*/*",
            "memory that the host holds for an idle guest on aarch64, 64 bytes a frame (host/guest \
                 {})",
        ),
        RESIDUAL
            .of(
                "*/*",
                "memory that the host holds for an idle guest without descriptors (host/guest \
                 {})",
            )
            .peers(WITHOUT_REPORTS)
            .subject("hotmem"),
        SETTLE
            .of("*/*", "from a guest's freeing memory until the host has it back (host/guest {})"),
        IDLE.of("*/*", "an idle guest's share of a CPU (host/guest {})"),
        TIME.of("give-back/*", "from freeing {} in random order until the host has it back"),
        RATE.of(
            "page_fault1/*/guest/*",
            "page_fault1 in a guest (threads/rounds {}): frames allocated in a second",
        ),
        RATE.of(
            "page_fault1/*/hosted/*",
            "page_fault1 in this process (threads/rounds {}): frames allocated in a \
                 second",
        ),
    ],
    plots: &[
        Plot::new(
            "Memory held for all guests together, by their number",
            (PACKING, packing::TOTAL_HELD),
            PACKED,
            Cases::Numbers { case: "*/*/after-guest-*", axis: "guests", is_logarithmic: false },
        )
        .linear(),
        Plot::new(
            "Time until the host has the memory back, by size",
            (NAME, super::TIME),
            LIMIT,
            Cases::Sizes("give-back/*"),
        ),
    ],
};
