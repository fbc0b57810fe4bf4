//! The points of any device.

use super::{convention, must};
use crate::device_type::DeviceType;
use crate::point::Check::Transport;
use crate::point::{Point, Requirement};
use crate::transport;

pub(super) const fn reset_reads_zero(kind: &'static DeviceType) -> Point {
    must(
        "transport/reset-reads-zero",
        "2.4.1",
        "After a reset, the status reads 0.",
        Transport(transport::reset_reads_zero, kind),
    )
}

pub(super) const fn reset_after_driver_ok(kind: &'static DeviceType) -> Point {
    must(
        "transport/reset-after-driver-ok",
        "2.4.1",
        "A device that runs can be reset, and starts again.",
        Transport(transport::reset_after_driver_ok, kind),
    )
}

pub(super) const fn features_subset_or_refused(kind: &'static DeviceType) -> Point {
    must(
        "transport/features-subset-or-refused",
        "2.2.2",
        "With `VERSION_1` as the only feature, the device either refuses FEATURES_OK or answers a request.",
        Transport(transport::features_subset_or_refused, kind),
    )
}

pub(super) const fn features_unknown_bit_refused(kind: &'static DeviceType) -> Point {
    must(
        "transport/features-unknown-bit-refused",
        "2.2.2",
        "With a feature that is not offered, FEATURES_OK reads 0.",
        Transport(transport::features_unknown_bit_refused, kind),
    )
}

pub(super) const fn generation_after_host_change(kind: &'static DeviceType) -> Point {
    must(
        "transport/generation-after-host-change",
        "4.2.2.1",
        "When the driver reads a field that the host has changed, the generation has changed as well.",
        Transport(transport::generation_after_host_change, kind),
    )
    .with_pci(Requirement::Must, "4.1.4.3.1")
}

pub(super) const fn queue_ready_reads_back(kind: &'static DeviceType) -> Point {
    convention(
        "transport/queue-ready-reads-back",
        "4.2.2",
        "`QueueReady` (`queue_enable` on PCI) of a queue that was made ready reads 1.",
        Transport(transport::queue_ready_reads_back, kind),
    )
    .with_pci(Requirement::Convention, "4.1.4.3")
}

pub(super) const fn queue_zero_after_reset(kind: &'static DeviceType) -> Point {
    must(
        "transport/queue-zero-after-reset",
        "4.2.2.1",
        "After a reset, `QueueReady` (`queue_enable` on PCI) reads 0.",
        Transport(transport::queue_zero_after_reset, kind),
    )
    .with_pci(Requirement::Must, "4.1.4.3.1")
}

pub(super) const fn unused_queue_size_zero(kind: &'static DeviceType) -> Point {
    convention(
        "transport/unused-queue-size-zero",
        "4.2.2",
        "The size of a queue that does not exist reads 0.",
        Transport(transport::unused_queue_size_zero, kind),
    )
    .with_pci(Requirement::Must, "4.1.4.3.1")
}

pub(super) const fn interrupt_after_answer(kind: &'static DeviceType) -> Point {
    must(
        "transport/interrupt-after-answer",
        "2.7.7.2",
        "The device interrupts when it has used a buffer.",
        Transport(transport::interrupt_after_answer, kind),
    )
}

pub(super) const fn interrupt_after_host_change(kind: &'static DeviceType) -> Point {
    must(
        "transport/interrupt-after-host-change",
        "5.15.4.2",
        "The device interrupts when the host has changed its configuration.",
        Transport(transport::interrupt_after_host_change, kind),
    )
}

pub(super) const fn interrupt_status(kind: &'static DeviceType) -> Point {
    must(
        "transport/interrupt-status",
        "4.2.2.1",
        "`InterruptStatus` (the ISR status on PCI, without MSI-X) has the bit of each event, until it is acknowledged.",
        Transport(transport::interrupt_status, kind),
    )
    .with_pci(Requirement::Must, "4.1.4.5.1")
}
