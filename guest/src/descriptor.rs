//! A page descriptor of 64 bytes, with what Linux keeps in one for the memory of devices.
//!
//! The guest describes persistent memory and RAM with it, and `hotmem bench memmap` writes the same
//! words in an ordinary process, so that both measure the same job.

use crate::layout::{DESCRIPTOR_BYTES, DESCRIPTOR_MAP_BASE};
use crate::to_usize;
use core::hint::black_box;
use core::mem::MaybeUninit;
use hotmem::Pfn;
use hotmem_memmap::{Compound, Describe, Frame, Kind, MapLayout, Role, SectionField};

/// A descriptor.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// Section, zone and node, and what is marked: [`RESERVED`], [`HEAD`].
    pub flags: u64,
    /// Whose memory it is; in tails of their own the head's address and [`TAIL`].
    pub owner: u64,
    /// For the owner.
    pub owner_data: u64,
    /// In tails [`TAIL_MAPPING`].
    pub mapping: u64,
    /// In the first tail of a compound its order.
    pub index: u64,
    /// For the owner.
    pub private: u64,
    /// Mappings, less one.
    pub mapcount: u32,
    /// Users.
    pub refcount: u32,
    /// The control group that is charged for it.
    pub group: u64,
}

/// In `flags`: nobody's memory to hand out.
pub const RESERVED: u64 = 1 << 13;
/// In `flags`: the first of several.
pub const HEAD: u64 = 1 << 6;
/// Beside the head's address: one of the others.
pub const TAIL: u64 = 1;
/// What tails have in the place of a mapping.
pub const TAIL_MAPPING: u64 = 0xdead_0000_0000_0400;
/// Nobody has mapped it.
pub const UNMAPPED: u32 = u32::MAX;
/// Where flags hold the section.
pub const SECTION: SectionField = SectionField::at(38);
/// In `flags`: zone and node, the same for all that one owner has.
pub const ZONE_AND_NODE: u64 = 0b11 << 36 | 1 << 30;

const _: () = assert!(size_of::<Page>() == to_usize(DESCRIPTOR_BYTES));

/// Whose memory is described, and where its descriptors lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// What descriptors say of it: even, as an address is.
    pub address: u64,
    /// Where the descriptor of frame 0 would be.
    pub map: u64,
    /// What all flags have in common.
    flags: u64,
}

/// Returns where a frame's descriptor is in this kernel's map.
#[must_use]
pub fn address_of(pfn: Pfn) -> u64 {
    Owner::RAM.descriptor(pfn)
}

impl Describe for Owner {
    type Descriptor = Page;
    type Words = [u64; 8];
    // The compound's order lies in the first.
    const METADATA_TAILS: u64 = 1;
    const READS_PAGEBLOCKS: bool = true;

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
            // Found by its address: `MapLayout::head_address`.
            Role::SharedTail { .. } => [self.flags, TAIL, 0, TAIL_MAPPING, 0, 0, counts, 0],
        }
    }

    fn pageblock(&self, _: Pfn, slot: Option<&MaybeUninit<Page>>) {
        if let Some(slot) = slot {
            // SAFETY: it has just been written, and any words make a `Page`.
            unsafe { slot.assume_init_ref() }.read_zone();
        }
    }
}

impl Owner {
    /// This kernel's own memory.
    pub const RAM: Owner = Owner { address: 0, map: DESCRIPTOR_MAP_BASE, flags: ZONE_AND_NODE };

    /// Holes beside this kernel's own memory, which are no memory at all.
    pub const HOLE: Owner = Owner { flags: ZONE_AND_NODE | RESERVED, ..Owner::RAM };

    /// Returns a device with memory of its own, described in a map that has the descriptor of frame
    /// 0 at `map`.
    #[must_use]
    pub const fn device(address: u64, map: u64) -> Owner {
        Owner { address, map, flags: ZONE_AND_NODE | RESERVED }
    }

    /// Returns where a frame's descriptor is.
    #[must_use]
    pub const fn descriptor(&self, pfn: Pfn) -> u64 {
        self.map.wrapping_add(pfn.number() * DESCRIPTOR_BYTES)
    }

    /// Returns the descriptor of a frame in compounds, or of a single one, as it is to be in its
    /// place.
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
    /// Reads the zone back, as setting up a pageblock does.
    #[inline]
    pub fn read_zone(&self) {
        black_box(self.flags & ZONE_AND_NODE);
    }

    /// Returns the words that it is.
    #[must_use]
    pub fn words(&self) -> [u64; 8] {
        let Page { flags, owner, owner_data, mapping, index, private, .. } = *self;
        let counts = u64::from(self.mapcount) | u64::from(self.refcount) << 32;
        [flags, owner, owner_data, mapping, index, private, counts, self.group]
    }

    /// Returns where the descriptor of its compound's head is, from its own address: what a tail of
    /// its own says, and what a shared one's place says.
    #[must_use]
    pub fn head_address(&self, address: u64, layout: &MapLayout) -> u64 {
        match (self.owner & TAIL, self.owner & !TAIL) {
            (0, _) => address,
            (_, 0) => layout.head_address(to_usize(address)) as u64,
            (_, head) => head,
        }
    }

    /// Returns what these words are, read as a descriptor.
    #[must_use]
    pub fn of_words(words: [u64; 8]) -> Page {
        let [flags, owner, owner_data, mapping, index, private, counts, group] = words;
        #[expect(clippy::cast_possible_truncation, reason = "its two halves")]
        let (mapcount, refcount) = (counts as u32, (counts >> 32) as u32);
        Page { flags, owner, owner_data, mapping, index, private, mapcount, refcount, group }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::PfnRange;
    use hotmem_memmap::{Memmap, Slots};

    fn pfn(number: u64) -> Pfn {
        Pfn::new(number).unwrap()
    }

    const OWNER: Owner = Owner::device(0x7000, DESCRIPTOR_MAP_BASE);

    #[test]
    fn every_frame_of_a_compound_finds_its_head() {
        let own = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &OWNER);
        for memmap in [own, own.sharing_tails().unwrap()] {
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
    fn a_compound_says_its_order_in_its_first_tail_and_nowhere_else() {
        let own = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &OWNER);
        for memmap in [own, own.sharing_tails().unwrap()] {
            let order =
                |n: u64| OWNER.page(pfn(512 * 7 + n), Kind::DeviceDax, memmap.layout()).index;
            assert_eq!((0..512).map(order).sum::<u64>(), 9);
            assert_eq!(order(1), 9);
        }
    }

    #[test]
    fn what_is_written_is_what_is_looked_for() {
        let range = PfnRange::with_len(pfn(512 * 7), 1024).unwrap();
        for (kind, compound) in
            [(Kind::FileSystemDax, Compound::SINGLE), (Kind::DeviceDax, Compound::MIB_2)]
        {
            let mut map = vec![MaybeUninit::<Page>::uninit(); 1024];
            let memmap = Memmap::new(kind, compound, &OWNER);
            memmap.describe(Slots::of(range, &mut map).unwrap()).unwrap();
            for (nth, slot) in (0..).zip(&map) {
                // SAFETY: `describe` has written all of them.
                let page = unsafe { slot.assume_init() };
                assert_eq!(page, OWNER.page(pfn(512 * 7 + nth), kind, memmap.layout()), "{nth}");
            }
        }
    }
}
