//! Defines a page descriptor of 64 bytes with the contents of Linux's descriptors for device
//! memory.
//!
//! The guest describes persistent memory and RAM by this descriptor. `hotmem bench memmap` writes
//! the same words in an ordinary process, so that its times can be compared with those of the guest.

use crate::layout::DESCRIPTOR_BYTES;
use crate::to_usize;
use core::hint::black_box;
use core::mem::MaybeUninit;
use hotmem::Pfn;
use hotmem_memmap::{Compound, Describe, Frame, Kind, MapLayout, Role, SectionField};

/// A descriptor.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// The section, the zone and the node of the frame, and the bits [`RESERVED`] and [`HEAD`].
    pub flags: u64,
    /// The owner's address. In a tail: [`TAIL`], and the address of the head's descriptor, unless the
    /// tail lies in a page of descriptors that many compounds share.
    pub owner: u64,
    /// Data of the owner.
    pub owner_data: u64,
    /// [`TAIL_MAPPING`] in tails.
    pub mapping: u64,
    /// The compound's order in the first tail, 0 in all other descriptors.
    pub index: u64,
    /// Data of the owner.
    pub private: u64,
    /// The number of mappings minus one.
    pub mapcount: u32,
    /// The reference count.
    pub refcount: u32,
    /// The control group that is charged for the frame.
    pub group: u64,
}

/// A bit of `flags`: the frame must not be given to an allocator.
pub const RESERVED: u64 = 1 << 13;
/// A bit of `flags`: the frame is the head of a compound.
pub const HEAD: u64 = 1 << 6;
/// A bit of `owner`: the frame is a tail of a compound.
pub const TAIL: u64 = 1;
/// The value of `mapping` in tails.
pub const TAIL_MAPPING: u64 = 0xdead_0000_0000_0400;
/// The value of `mapcount` of a frame without mappings.
pub const UNMAPPED: u32 = u32::MAX;
/// The position of the section's number in `flags`.
pub const SECTION: SectionField = SectionField::at(38);
/// The bits of `flags` for the zone and the node, with the values that all memory has.
pub const ZONE_AND_NODE: u64 = 0b11 << 36 | 1 << 30;

const _: () = assert!(size_of::<Page>() == to_usize(DESCRIPTOR_BYTES));

/// An owner of memory, and the address of the map of that memory's descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The owner's address, which its descriptors contain. It is even.
    pub address: u64,
    /// The address of the descriptor of frame 0.
    pub map: u64,
    /// The flags that the descriptors of all its frames have.
    flags: u64,
}

impl Describe for Owner {
    type Descriptor = Page;
    type Words = [u64; 8];
    // The first tail holds the compound's order.
    const METADATA_TAILS: u64 = 1;
    const INITIALISES_PAGEBLOCKS: bool = true;

    fn words(&self, frame: &Frame) -> [u64; 8] {
        let counts = u64::from(UNMAPPED) | u64::from(frame.refcount) << 32;
        match frame.role {
            Role::Single(pfn) => {
                [SECTION.set(self.flags, pfn), self.address, 0, 0, 0, 0, counts, 0]
            }
            Role::Head { pfn, .. } => {
                [SECTION.set(self.flags | HEAD, pfn), self.address, 0, 0, 0, 0, counts, 0]
            }
            Role::Tail { pfn, head, compound } => {
                let is_first = pfn.number() == head.number() + 1;
                let order = if is_first { compound.order().into() } else { 0 };
                let (flags, head) = (SECTION.set(self.flags, pfn), self.descriptor(head) | TAIL);
                [flags, head, 0, TAIL_MAPPING, order, 0, counts, 0]
            }
            // A shared tail cannot contain the head's address; `MapLayout::head_address` computes
            // it from the address of the tail's descriptor.
            Role::SharedTail { .. } => [self.flags, TAIL, 0, TAIL_MAPPING, 0, 0, counts, 0],
        }
    }

    fn init_pageblock(&self, _: Pfn, slot: Option<&MaybeUninit<Page>>) {
        if let Some(slot) = slot {
            // SAFETY: the caller has just written the slot, and any words are a valid `Page`.
            unsafe { slot.assume_init_ref() }.read_zone();
        }
    }
}

impl Owner {
    /// Returns the owner of a kernel's RAM. `map` is the address of the descriptor of frame 0.
    #[must_use]
    pub const fn ram(map: u64) -> Owner {
        Owner { address: 0, map, flags: ZONE_AND_NODE }
    }

    /// Returns the owner of holes between a kernel's RAM. `map` is the address of the descriptor of frame
    /// 0.
    #[must_use]
    pub const fn hole(map: u64) -> Owner {
        Owner { address: 0, map, flags: ZONE_AND_NODE | RESERVED }
    }

    /// Returns the owner of a device's memory. `map` is the address of the descriptor of frame 0.
    #[must_use]
    pub const fn device(address: u64, map: u64) -> Owner {
        Owner { address, map, flags: ZONE_AND_NODE | RESERVED }
    }

    /// Returns the address of a frame's descriptor.
    #[must_use]
    pub const fn descriptor(&self, pfn: Pfn) -> u64 {
        self.map.wrapping_add(pfn.number() * DESCRIPTOR_BYTES)
    }

    /// Returns the expected descriptor of a frame, which may be single or a part of a compound.
    #[must_use]
    pub fn page(&self, pfn: Pfn, kind: Kind, layout: &MapLayout) -> Page {
        let compound = layout.compound();
        let head = pfn.align_down(compound.frames());
        let nth = pfn.number() - head.number();
        let role = if compound == Compound::SINGLE {
            Role::Single(pfn)
        } else if nth == 0 {
            Role::Head { pfn, compound }
        } else if layout.shares_tails() && nth > Self::METADATA_TAILS {
            Role::SharedTail { compound }
        } else {
            Role::Tail { pfn, head, compound }
        };
        let is_tail = matches!(role, Role::Tail { .. } | Role::SharedTail { .. });
        let refcount = if is_tail { 0 } else { kind.refcount() };
        Page::of_words(self.words(&Frame { role, refcount }))
    }
}

impl Page {
    /// Reads the zone and the node, as Linux does when it initialises a pageblock.
    #[inline]
    pub fn read_zone(&self) {
        black_box(self.flags & ZONE_AND_NODE);
    }

    /// Returns the descriptor as words.
    #[must_use]
    pub fn words(&self) -> [u64; 8] {
        let Page { flags, owner, owner_data, mapping, index, private, .. } = *self;
        let counts = u64::from(self.mapcount) | u64::from(self.refcount) << 32;
        [flags, owner, owner_data, mapping, index, private, counts, self.group]
    }

    /// Returns the address of the descriptor of the compound's head. `address` is the address of
    /// this descriptor. The result comes from the contents if the tail is not shared, and from
    /// `address` if the tail is shared.
    #[must_use]
    pub fn head_address(&self, address: u64, layout: &MapLayout) -> u64 {
        match (self.owner & TAIL, self.owner & !TAIL) {
            (0, _) => address,
            (_, 0) => layout.head_address(to_usize(address)) as u64,
            (_, head) => head,
        }
    }

    /// Decodes a descriptor from words.
    #[must_use]
    pub fn of_words(words: [u64; 8]) -> Page {
        let [flags, owner, owner_data, mapping, index, private, counts, group] = words;
        #[expect(clippy::cast_possible_truncation, reason = "the word is split into two halves")]
        let (mapcount, refcount) = (counts as u32, (counts >> 32) as u32);
        Page { flags, owner, owner_data, mapping, index, private, mapcount, refcount, group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use hotmem::PfnRange;
    use hotmem_memmap::{Memmap, Slots};

    fn pfn(number: u64) -> Pfn {
        Pfn::new(number).unwrap()
    }

    const DESCRIPTOR_MAP_BASE: u64 = Layout::FOUR_LEVELS.descriptor_map_base;
    const OWNER: Owner = Owner::device(0x7000, DESCRIPTOR_MAP_BASE);

    fn address_of(pfn: Pfn) -> u64 {
        OWNER.descriptor(pfn)
    }

    #[test]
    fn every_frame_of_a_compound_finds_its_head() {
        let unshared = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &OWNER);
        for memmap in [unshared, unshared.sharing_tails().unwrap()] {
            let layout = memmap.layout();
            assert_eq!(DESCRIPTOR_MAP_BASE % layout.base_alignment().0, 0);
            for number in [512 * 7, 512 * 7 + 1, 512 * 7 + 2, 512 * 7 + 64, 512 * 8 - 1] {
                let page = OWNER.page(pfn(number), Kind::DeviceDax, layout);
                assert_eq!(Page::of_words(page.words()), page);
                let head = page.head_address(address_of(pfn(number)), layout);
                assert_eq!(head, address_of(pfn(512 * 7)), "{number}");
                assert_eq!(page.flags & HEAD != 0, number == 512 * 7);
                assert_eq!(page.refcount, u32::from(number == 512 * 7));
                assert_eq!((page.flags & RESERVED, page.mapcount), (RESERVED, UNMAPPED));
            }
        }
    }

    #[test]
    fn a_single_frame_is_its_own_head() {
        let memmap = Memmap::new(Kind::FileSystemDax, Compound::SINGLE, &OWNER);
        let page = OWNER.page(pfn(32768 * 3 + 5), Kind::FileSystemDax, memmap.layout());
        assert_eq!(page.head_address(0x1240, memmap.layout()), 0x1240);
        assert_eq!(SECTION.get(page.flags), Some(pfn(32768 * 3)));
        assert_eq!((page.refcount, page.owner, page.index), (0, 0x7000, 0));
    }

    #[test]
    fn only_the_first_tail_holds_the_compounds_order() {
        let unshared = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &OWNER);
        for memmap in [unshared, unshared.sharing_tails().unwrap()] {
            let order =
                |n: u64| OWNER.page(pfn(512 * 7 + n), Kind::DeviceDax, memmap.layout()).index;
            assert_eq!((0..512).map(order).sum::<u64>(), 9);
            assert_eq!(order(1), 9);
        }
    }

    #[test]
    fn describe_writes_the_expected_descriptors() {
        let range = PfnRange::with_len(pfn(512 * 7), 1024).unwrap();
        for (kind, compound) in
            [(Kind::FileSystemDax, Compound::SINGLE), (Kind::DeviceDax, Compound::MIB_2)]
        {
            let mut map = vec![MaybeUninit::<Page>::uninit(); 1024];
            let memmap = Memmap::new(kind, compound, &OWNER);
            memmap.describe(Slots::of(range, &mut map).unwrap()).unwrap();
            for (nth, slot) in (0..).zip(&map) {
                // SAFETY: `describe` has written all slots.
                let page = unsafe { slot.assume_init() };
                assert_eq!(page, OWNER.page(pfn(512 * 7 + nth), kind, memmap.layout()), "{nth}");
            }
        }
    }
}
