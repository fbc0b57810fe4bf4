//! Describes how the devices of VMMs differ at the transport. A mock device refuses what the VMM
//! that it follows refuses.

/// A VMM whose devices a mock device follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vmm {
    /// Ignores a write to the status that does not set exactly the next bit, or FAILED, or 0.
    pub(crate) takes_one_status_bit_per_write: bool,
    /// Forgets which half of the features is selected while the status is 0, so that both halves
    /// read as the low half.
    pub(crate) forgets_selectors_at_reset: bool,
    /// Does not run, and sets `DEVICE_NEEDS_RESET`, if a queue is not enabled at `DRIVER_OK`.
    pub(crate) needs_all_queues: bool,
    /// The generation of the configuration stays 0 when the configuration changes.
    pub(crate) has_no_generation: bool,
    /// The usable region is empty until the host requests a size, also after UNPLUG_ALL.
    pub(crate) unplug_all_empties_usable_region: bool,
    /// Answers ERROR to a request that crosses a multiple of this number of bytes in the region.
    pub(crate) slot_bytes: Option<u64>,
    /// The number of descriptors of each queue.
    pub(crate) queue_size: u32,
}

impl Vmm {
    pub(crate) const QEMU: Vmm = Vmm {
        takes_one_status_bit_per_write: false,
        forgets_selectors_at_reset: false,
        needs_all_queues: false,
        has_no_generation: false,
        unplug_all_empties_usable_region: false,
        slot_bytes: None,
        queue_size: 128,
    };
    pub(crate) const FIRECRACKER: Vmm = Vmm {
        takes_one_status_bit_per_write: true,
        needs_all_queues: true,
        has_no_generation: true,
        unplug_all_empties_usable_region: true,
        queue_size: 256,
        ..Self::QEMU
    };
    pub(crate) const CLOUD_HYPERVISOR: Vmm = Vmm { forgets_selectors_at_reset: true, ..Self::QEMU };
    /// Libkrun, as microsandbox uses it.
    pub(crate) const LIBKRUN: Vmm =
        Vmm { takes_one_status_bit_per_write: true, has_no_generation: true, ..Self::QEMU };
    pub(crate) const DRAGONBALL: Vmm = Vmm {
        takes_one_status_bit_per_write: true,
        slot_bytes: Some(2 << 30),
        queue_size: 64,
        ..Self::QEMU
    };
    /// A device with the demands of all of them.
    pub(crate) const STRICTEST: Vmm = Vmm {
        forgets_selectors_at_reset: true,
        slot_bytes: Self::DRAGONBALL.slot_bytes,
        queue_size: 64,
        ..Self::FIRECRACKER
    };

    const ALL: [Vmm; 6] = [
        Self::QEMU,
        Self::FIRECRACKER,
        Self::CLOUD_HYPERVISOR,
        Self::LIBKRUN,
        Self::DRAGONBALL,
        Self::STRICTEST,
    ];

    /// Iterates over all VMMs. The output of a test that fails shows the last one.
    pub(crate) fn each() -> impl Iterator<Item = Vmm> {
        Self::ALL.into_iter().inspect(|vmm| println!("{vmm:?}"))
    }
}
