//! The section about other kernels that use Hotmem.

use super::section::{Cases, Plot, Row, Section};

const OSDK: &[(&str, &str)] = &[("osdk-frame-allocator", "osdk-frame-allocator")];
const ALLOCATORS: &[(&str, &str)] =
    &[("hotmem", "hotmem"), ("osdk-frame-allocator", "osdk-frame-allocator")];
const HOTMEM: &[(&str, &str)] = &[("hotmem", "hotmem")];

pub(super) const SECTION: Section = Section {
    id: "ports",
    title: "Other kernels that use Hotmem",
    question: "Does the engine work as the frame allocator of ArceOS, of OSTD and of a kernel in C? \
               What does it cost there?",
    published: "Without Hotmem none of the three can use memory that its host plugs. ArceOS does not \
               even boot with 1 GiB, because its allocator's bitmap is for 256 MiB.",
    explanation: "ArceOS and the kernel in C boot with 128 MiB, OSTD with 512 MiB. The rows name the \
              kernel and the plugged size. Each kernel uses all plugged memory and frees it before \
              it is unplugged. Only OSTD has a peer: its own allocator, which caches segments of \
              one to four frames for each CPU.",
    not_measured: "None of the kernels has run on hardware with Hotmem.",
    steps: &["ports"],
    rows: &[
        Row {
            title: "memory plugged into a kernel ({})",
            bench: "ports",
            case: "*/*/plug",
            ..Row::DEFAULT
        },
        Row {
            title: "memory unplugged from a kernel, none of it in use any more ({})",
            bench: "ports",
            case: "*/*/unplug",
            ..Row::DEFAULT
        },
        Row {
            title: "from the host's request to the first allocation in plugged memory, ArceOS",
            bench: "ports",
            case: "arceos/first-allocation",
            ..Row::DEFAULT
        },
        Row {
            title: "OSTD: a segment of {} frames allocated and freed: instructions",
            bench: "ports",
            case: "ostd/segment/*",
            metric: "instructions_per_op",
            peers: OSDK,
            ..Row::DEFAULT
        },
        Row {
            title: "OSTD: free memory after a boot with 3 GiB",
            bench: "ports",
            case: "ostd/boot",
            metric: "free",
            peers: OSDK,
            more_is_better: true,
            ..Row::DEFAULT
        },
        Row {
            title: "memory that the host holds while the kernel uses 1 GiB, {}",
            bench: "ports",
            case: "*/1G/in-use",
            metric: "held",
            ..Row::DEFAULT
        },
        Row {
            title: "memory that the host holds after the 1 GiB was freed and reported, {}",
            bench: "ports",
            case: "*/1G/free",
            metric: "held",
            ..Row::DEFAULT
        },
    ],
    plots: &[
        Plot {
            title: "A segment of OSTD allocated and freed, by its frames",
            bench: "ports",
            metric: "instructions_per_op",
            cases: Cases::Numbers { case: "ostd/segment/*", axis: "frames", is_logarithmic: true },
            subjects: ALLOCATORS,
            is_logarithmic: true,
        },
        Plot {
            title: "4 GiB plugged and unplugged",
            bench: "ports",
            metric: "time",
            cases: Cases::Named(&[
                ("arceos/4G/plug", "ArceOS, plug"),
                ("ostd/4G/plug", "OSTD, plug"),
                ("c-kernel/4G/plug", "C, plug"),
                ("arceos/4G/unplug", "ArceOS, unplug"),
                ("ostd/4G/unplug", "OSTD, unplug"),
                ("c-kernel/4G/unplug", "C, unplug"),
            ]),
            subjects: HOTMEM,
            is_logarithmic: true,
        },
    ],
};
