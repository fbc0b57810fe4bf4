//! Reads the PCI capabilities that say where a device's registers are (4.1.4).

use super::error::PciError;
use virtio_drivers::transport::pci::bus::{ConfigurationAccess, DeviceFunction, PCI_CAP_ID_VNDR};
use virtio_drivers::transport::pci::{
    VIRTIO_PCI_CAP_COMMON_CFG, VIRTIO_PCI_CAP_DEVICE_CFG, VIRTIO_PCI_CAP_ISR_CFG,
    VIRTIO_PCI_CAP_NOTIFY_CFG,
};

/// The place of each kind of registers of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capabilities {
    pub(super) common_config: RegisterLocation,
    pub(super) notify: RegisterLocation,
    /// The distance in bytes from one notification register to the next.
    pub(super) notify_step: u32,
    pub(super) isr: RegisterLocation,
    /// The device's own configuration. A device of a type that has none has no such registers
    /// (4.1.4.6.1).
    pub(super) device: Option<RegisterLocation>,
}

/// A range of bytes in a BAR.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegisterLocation {
    pub(super) bar: u8,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// The size of `virtio_pci_common_cfg` without the fields that version 1.2 has added.
pub(super) const COMMON_BYTES: u32 = 56;

const STATUS: u8 = 4;
/// The bit of `STATUS` that says whether the device has a list of capabilities.
const HAS_CAPABILITIES: u32 = 1 << (16 + 4);
/// The register with the offset of the first capability.
const FIRST_CAPABILITY: u8 = 0x34;
/// The offsets of the fields of `virtio_pci_cap`.
const BAR: u8 = 4;
const OFFSET: u8 = 8;
const LENGTH: u8 = 12;
const NOTIFY_STEP: u8 = 16;
/// The largest number of capabilities that fit in configuration space. A list that is longer has a
/// cycle.
const MAX_CAPABILITIES: usize = 48;
pub(super) const BAR_COUNT: u8 = 6;

impl Capabilities {
    /// Reads the list of capabilities. If several capabilities describe registers of one kind, the
    /// first is used, because a device lists them in the order of preference.
    pub(super) fn read<C: ConfigurationAccess>(
        config: &C,
        function: DeviceFunction,
    ) -> Result<Capabilities, PciError> {
        let find = |kind, min_bytes| {
            let has_kind = |&offset: &u8| is_kind(config, function, offset, kind);
            capability_offsets(config, function)
                .filter(has_kind)
                .map(|offset| (offset, RegisterLocation::read(config, function, offset)))
                .find(|(_, location)| location.bar < BAR_COUNT && location.len >= min_bytes)
                .ok_or(PciError::Missing(kind))
        };
        let (notify_capability, notify) = find(VIRTIO_PCI_CAP_NOTIFY_CFG, 2)?;
        Ok(Capabilities {
            common_config: find(VIRTIO_PCI_CAP_COMMON_CFG, COMMON_BYTES)?.1,
            notify,
            notify_step: config.read_word(function, notify_capability.wrapping_add(NOTIFY_STEP)),
            isr: find(VIRTIO_PCI_CAP_ISR_CFG, 1)?.1,
            // The only error is that there are no such registers.
            device: find(VIRTIO_PCI_CAP_DEVICE_CFG, 1).ok().map(|(_, location)| location),
        })
    }

    /// Returns the number of bytes from the start of this BAR to the end of its last register.
    pub(super) fn mapped_bytes(&self, bar: u8) -> u64 {
        let locations = [self.common_config, self.notify, self.isr].into_iter().chain(self.device);
        let ends = locations.filter(|location| location.bar == bar).map(|location| location.end());
        ends.max().unwrap_or(0)
    }
}

impl RegisterLocation {
    fn read<C: ConfigurationAccess>(
        config: &C,
        function: DeviceFunction,
        capability: u8,
    ) -> RegisterLocation {
        let word = |field: u8| config.read_word(function, capability.wrapping_add(field));
        let [bar, ..] = word(BAR).to_le_bytes();
        RegisterLocation { bar, offset: word(OFFSET), len: word(LENGTH) }
    }

    pub(super) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.len)
    }
}

/// Returns the offset of the first capability with this identifier.
pub(super) fn find_capability<C: ConfigurationAccess>(
    config: &C,
    function: DeviceFunction,
    id: u8,
) -> Option<u8> {
    let has_id = |&offset: &u8| config.read_word(function, offset).to_le_bytes()[0] == id;
    capability_offsets(config, function).find(has_id)
}

/// Returns whether the capability at this offset is a virtio capability of this kind.
fn is_kind<C: ConfigurationAccess>(
    config: &C,
    function: DeviceFunction,
    offset: u8,
    kind: u8,
) -> bool {
    let [id, _, _, found_kind] = config.read_word(function, offset).to_le_bytes();
    id == PCI_CAP_ID_VNDR && found_kind == kind
}

/// Iterates over the offsets of all capabilities.
fn capability_offsets<C: ConfigurationAccess>(
    config: &C,
    function: DeviceFunction,
) -> impl Iterator<Item = u8> + '_ {
    let has_any = config.read_word(function, STATUS) & HAS_CAPABILITIES != 0;
    // The last capability has the link 0.
    let follow = |link: u8| Some(link & !3).filter(|&offset| offset != 0);
    let first = config.read_word(function, FIRST_CAPABILITY).to_le_bytes()[0];
    let first = if has_any { follow(first) } else { None };
    core::iter::successors(first, move |&offset| {
        follow(config.read_word(function, offset).to_le_bytes()[1])
    })
    .take(MAX_CAPABILITIES)
}
