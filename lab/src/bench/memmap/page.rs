//! A descriptor as large as Linux's, with what Linux keeps in it for the memory of devices.

use hotmem::{
    Pfn,
    memmap::{Describe, Frame, Role, SectionField},
};
use std::{hint::black_box, mem::MaybeUninit};

/// A page descriptor.
#[repr(C, align(64))]
pub(super) struct Page {
    pub(super) flags: u64,
    /// The device's owner; in tails, the head's address and a mark.
    pub(super) owner: u64,
    pub(super) owner_data: u64,
    pub(super) mapping: u64,
    pub(super) index: u64,
    pub(super) private: u64,
    pub(super) mapcount: u32,
    pub(super) refcount: u32,
    pub(super) group: u64,
}

/// Where flags hold the section.
pub(super) const SECTION: SectionField = SectionField::at(38);
/// Zone and node, the same for the whole device.
pub(super) const ZONE_AND_NODE: u64 = 0b11 << 36 | 1 << 30;
/// Nobody's memory to hand out.
pub(super) const RESERVED: u64 = 1 << 13;
/// The first of several.
pub(super) const HEAD: u64 = 1 << 6;
/// Marks a tail, beside the head's address.
pub(super) const TAIL: u64 = 1;
/// What tails have in the place of a mapping.
pub(super) const TAIL_MAPPING: u64 = 0xdead_0000_0000_0400;
/// Nobody has mapped it.
pub(super) const UNMAPPED: u32 = u32::MAX;

/// The device whose memory is described.
pub(super) struct Device {
    /// The address of frame 0's descriptor, were it there.
    pub(super) map: u64,
    /// Its owner.
    pub(super) owner: u64,
}

impl Device {
    /// The address of a frame's descriptor.
    pub(super) const fn descriptor(&self, pfn: Pfn) -> u64 {
        self.map.wrapping_add(pfn.number() * size_of::<Page>() as u64)
    }
}

impl Describe for Device {
    type Descriptor = Page;
    type Words = [u64; 8];
    // The compound's order lies in the first.
    const METADATA_TAILS: u64 = 1;
    const READS_PAGEBLOCKS: bool = true;

    fn words(&self, frame: &Frame) -> [u64; 8] {
        let counts = u64::from(UNMAPPED) | u64::from(frame.refcount) << 32;
        let common = ZONE_AND_NODE | RESERVED;
        match frame.role {
            Role::Single(pfn) => [SECTION.set(common, pfn), self.owner, 0, 0, 0, 0, counts, 0],
            Role::Head { pfn, .. } => {
                [SECTION.set(common | HEAD, pfn), self.owner, 0, 0, 0, 0, counts, 0]
            }
            Role::Tail { pfn, head, compound } => {
                let is_first = pfn.number() == head.number() + 1;
                let order = if is_first { compound.order().into() } else { 0 };
                let (flags, head) = (SECTION.set(common, pfn), self.descriptor(head) | TAIL);
                [flags, head, 0, TAIL_MAPPING, order, 0, counts, 0]
            }
            Role::SharedTail { .. } => [common, TAIL, 0, TAIL_MAPPING, 0, 0, counts, 0],
        }
    }

    fn pageblock(&self, _: Pfn, slot: Option<&MaybeUninit<Page>>) {
        if let Some(slot) = slot {
            // SAFETY: it has just been written, and any words make a `Page`.
            read_back(unsafe { slot.assume_init_ref() });
        }
    }
}

/// What setting up a pageblock reads: the zone that it lies in.
#[inline]
pub(super) fn read_back(page: &Page) {
    black_box(page.flags & ZONE_AND_NODE);
}
