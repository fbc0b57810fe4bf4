//! The section of the report about plugging and unplugging memory in guests.

use super::{measure, name};
use crate::bench::section::{Cases, Plot, Requirement, Row, Section, step};
use crate::linux::Drivers;
use crate::qemu::Architecture;

const LINUX: &[(&str, &str)] = &[("Linux", "linux")];
const GUESTS: &[(&str, &str)] = &[
    ("hotmem, 64 bytes a frame", "hotmem-64B"),
    ("hotmem, no descriptors", "hotmem"),
    ("Linux", "linux"),
];
const NAME: &str = name(Architecture::X86_64);
const TIME: Row = Row::new(NAME, measure::TIME);
const FIRST_LINE: Row = Row::new(NAME, measure::FIRST_LINE);
const AARCH64_TIME: Row = Row::new(name(Architecture::Aarch64), measure::TIME);

/// Returns a row of the instructions of the guest with descriptors on an architecture.
const fn instructions(architecture: Architecture) -> Row {
    Row::new(name(architecture), measure::INSTRUCTIONS).peers(LINUX).subject("hotmem-64B")
}

pub(crate) const SECTION: Section = Section {
    id: "plug",
    title: "Memory plugged into guests and unplugged",
    question: "How long does it take until a guest can use memory that its host plugs, and \
               until the guest has given that memory back? How do these times grow with the \
               size?",
    published: "virtio-mem's Linux driver adds and removes memory block by block, each of 128 \
               MiB. linux-mm reports 10 s for 256 GiB and 36 s for 512 GiB under KVM on \
               hardware (Yuan Liu, March 2026), and 3 s and 7 s with a patch.",
    explanation: "The guest hotmem-64B writes a descriptor of 64 bytes for each frame, as Linux \
               does, so compare only its figures with those of Linux. The guest hotmem writes \
               no descriptors, so it does less work. Linux also runs user programs and writes a \
               log. Its script polls the memory every 20 ms, so its figures may be up to 20 ms \
               too long. Except in the row of a guest that has just booted, 2 GiB were plugged \
               into each guest and unplugged again before a row with Linux was measured.",
    not_measured: "No guest has had memory plugged by a host that uses hardware virtualization. \
               Linux is version 6.1 of Debian, with at most 64 GiB plugged; a newer Linux has \
               not been measured.",
    steps: &[
        step("vm")
            .needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Virtio))
            .standard(
                "vm --guests hotmem-64B,linux,hotmem --sizes 4G,16G,64G --touch 0 --runs 3",
                220,
            )
            .quick("vm --guests hotmem-64B,linux --sizes 2G,4G --touch 0 --runs 2", 50),
        step("vm-cold").needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Virtio)).standard(
            "vm --guests hotmem-64B,linux --sizes 16G --touch 0 --warm-up 0 --runs 2",
            27,
        ),
        step("vm-sizes")
            .needs(Requirement::Guest(Architecture::X86_64))
            .standard("vm --sizes 256G,512G,4T --touch 0 --warm-up 2G --runs 3", 12)
            .quick("vm --sizes 16G,64G,4T --touch 0 --warm-up 2G --runs 3", 10),
        step("vm-used")
            .needs(Requirement::Guest(Architecture::X86_64))
            .standard("vm --sizes 64G --touch 1G --warm-up 2G --runs 3", 42),
        step("vm-instructions")
            .needs(Requirement::GuestAndLinux(Architecture::X86_64, Drivers::Virtio))
            .standard("vm --guests hotmem-64B,linux --sizes 16G --touch 0 --runs 1 --icount", 34),
        step("vm-aarch64")
            .needs(Requirement::GuestAndLinux(Architecture::Aarch64, Drivers::Virtio))
            .standard("vm --arch aarch64 --guests hotmem-64B,linux --sizes 64G --touch 0 --runs 2", 100),
        step("vm-aarch64-instructions")
            .needs(Requirement::GuestAndLinux(Architecture::Aarch64, Drivers::Virtio))
            .standard(
                "vm --arch aarch64 --guests hotmem-64B,linux --sizes 16G --touch 0 --runs 1 --icount",
                34,
            ),
        step("vm-riscv64-instructions")
            .needs(Requirement::Guest(Architecture::Riscv64))
            .standard("vm --arch riscv64 --guests hotmem-64B,hotmem --sizes 1G --runs 1 --icount", 4),
    ],
    rows: &[
        TIME.of(
            "*/online_movable/plug",
            "{} plugged into a guest, 64 bytes written for each frame",
        )
        .peers(LINUX)
        .subject("hotmem-64B")
        .in_step("vm")
        .headline("64G"),
        TIME.of("*/online_movable/unplug", "{} unplugged from that guest, none of it in use")
            .peers(LINUX)
            .subject("hotmem-64B")
            .in_step("vm")
            .headline("64G"),
        TIME.of(
            "*/online_movable/plug",
            "{} plugged into a guest that has just booted, 64 bytes written for each \
                 frame",
        )
        .peers(LINUX)
        .subject("hotmem-64B")
        .in_step("vm-cold"),
        instructions(Architecture::X86_64).of(
            "*/online_movable/plug",
            "{} plugged into a guest, 64 bytes written for each frame: instructions",
        ),
        instructions(Architecture::X86_64).of(
            "*/online_movable/unplug",
            "{} unplugged from that guest, none of it in use: instructions",
        ),
        AARCH64_TIME
            .of(
                "*/online_movable/plug",
                "{} plugged into a guest on aarch64, 64 bytes written for each frame",
            )
            .peers(LINUX)
            .subject("hotmem-64B"),
        AARCH64_TIME
            .of(
                "*/online_movable/unplug",
                "{} unplugged from that guest on aarch64, none of it in use",
            )
            .peers(LINUX)
            .subject("hotmem-64B"),
        instructions(Architecture::Aarch64).of(
            "*/online_movable/plug",
            "{} plugged into a guest on aarch64, 64 bytes written for each frame: instructions",
        ),
        instructions(Architecture::Aarch64).of(
            "*/online_movable/unplug",
            "{} unplugged from that guest on aarch64, none of it in use: instructions",
        ),
        instructions(Architecture::Riscv64).of(
            "*/online_movable/plug",
            "{} of a guest on riscv64 added after boot, 64 bytes written for each frame: instructions",
        ),
        instructions(Architecture::Riscv64).of(
            "*/online_movable/unplug",
            "{} of that guest on riscv64 removed, none of it in use: instructions",
        ),
        TIME.of("*/online_movable/plug", "{} plugged into a guest without descriptors"),
        TIME.of("*/online_movable/unplug", "{} unplugged from a guest without descriptors"),
        TIME.of(
            "64G/online_movable/unplug-1G-checked",
            "64 GiB unplugged while 1 GiB of it is in use; the guest reads that part and \
                 frees it",
        ),
        TIME.of(
            "64G/online_movable/unplug-1G-dropped",
            "the same, but the guest frees the 1 GiB without reading it",
        ),
        TIME.of(
            "64G/online_movable/unplug-1G-migrated",
            "the same, but the guest moves the 1 GiB to other frames",
        ),
        FIRST_LINE.of("boot", "from the start of QEMU to the first line that the guest prints"),
    ],
    plots: &[
        Plot::new(
            "Plug, by size",
            (NAME, measure::TIME),
            GUESTS,
            Cases::Sizes("*/online_movable/plug"),
        ),
        Plot::new(
            "Unplug, by size",
            (NAME, measure::TIME),
            GUESTS,
            Cases::Sizes("*/online_movable/unplug"),
        ),
    ],
};
