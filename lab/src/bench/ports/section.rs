//! The section of the report about other kernels that use Hotmem.

use super::NAME;
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};

const OSDK: &[(&str, &str)] = &[("osdk-frame-allocator", "osdk-frame-allocator")];
const ALLOCATORS: &[(&str, &str)] =
    &[("hotmem", "hotmem"), ("osdk-frame-allocator", "osdk-frame-allocator")];
const HOTMEM: &[(&str, &str)] = &[("hotmem", "hotmem")];
const TIME: Row = Row::new(NAME, super::TIME);
const INSTRUCTIONS: Row = Row::new(NAME, super::INSTRUCTIONS).peers(OSDK);
const FREE: Row = Row::new(NAME, super::FREE_MEMORY).peers(OSDK).more_is_better();
const HELD: Row = Row::new(NAME, super::HOST_MEMORY);

pub(crate) const SECTION: Section = Section {
    id: "ports",
    title: "Other kernels that use Hotmem",
    question: "Does the engine work as the frame allocator of ArceOS, of OSTD and of a kernel \
               in C? What does it cost there?",
    published: "Without Hotmem none of the three can use memory that its host plugs. ArceOS does \
               not even boot with 1 GiB, because its allocator's bitmap is for 256 MiB.",
    explanation: "ArceOS and the kernel in C boot with 128 MiB, OSTD with 512 MiB. The rows name \
               the kernel and the plugged size. Each kernel uses all plugged memory and frees \
               it before it is unplugged. Only OSTD has a peer: its own allocator, which caches \
               segments of one to four frames for each CPU.",
    not_measured: "None of the kernels has run on hardware with Hotmem.",
    steps: &[step("ports")
        .needs(Requirement::Ports)
        .standard("ports --kernels arceos,ostd,c-kernel --sizes 4G --runs 3", 95)
        .quick("ports --kernels arceos,ostd,c-kernel --sizes 1G --runs 1", 25)],
    rows: &[
        TIME.of("*/*/plug", "memory plugged into a kernel ({})"),
        TIME.of("*/*/unplug", "memory unplugged from a kernel, none of it in use any more ({})"),
        TIME.of(
            "arceos/first-allocation",
            "from the host's request to the first allocation in plugged memory, ArceOS",
        ),
        INSTRUCTIONS
            .of("ostd/segment/*", "OSTD: a segment of {} frames allocated and freed: instructions"),
        FREE.of("ostd/boot", "OSTD: free memory after a boot with 3 GiB"),
        HELD.of("*/1G/in-use", "memory that the host holds while the kernel uses 1 GiB, {}"),
        HELD.of(
            "*/1G/free",
            "memory that the host holds after the 1 GiB was freed and reported, {}",
        ),
    ],
    plots: &[
        Plot::new(
            "A segment of OSTD allocated and freed, by its frames",
            (NAME, super::INSTRUCTIONS),
            ALLOCATORS,
            Cases::Numbers { case: "ostd/segment/*", axis: "frames", is_logarithmic: true },
        ),
        Plot::new(
            "4 GiB plugged and unplugged",
            (NAME, super::TIME),
            HOTMEM,
            Cases::Named(&[
                ("arceos/4G/plug", "ArceOS, plug"),
                ("ostd/4G/plug", "OSTD, plug"),
                ("c-kernel/4G/plug", "C, plug"),
                ("arceos/4G/unplug", "ArceOS, unplug"),
                ("ostd/4G/unplug", "OSTD, unplug"),
                ("c-kernel/4G/unplug", "C, unplug"),
            ]),
        ),
    ],
};
