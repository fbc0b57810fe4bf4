//! This kernel's page descriptors: 64 bytes for a frame, as Linux has them.

use crate::descriptor_map::{DESCRIPTOR_BYTES, DESCRIPTOR_MAP_BASE};
use crate::to_usize;
use hotmem::Pfn;
use hotmem::memmap::{Compound, Describe, Frame, Kind, MapLayout, Role, SectionField};

/// A descriptor.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// Its section, and whether it is a head or a tail.
    pub flags: u64,
    /// In heads the compound's order; in tails of their own the head's address, and [`TAIL`].
    pub compound: u64,
    /// Users.
    pub refcount: u32,
    /// Mappings, less one.
    pub mapcount: u32,
    /// Whose memory it is.
    pub owner: u64,
    /// For the owner.
    pub private: [u64; 4],
}

/// In `flags`: the first of several.
pub const HEAD: u64 = 1 << 0;
/// In `flags` and beside the head's address: one of the others.
pub const TAIL: u64 = 1 << 1;
/// Where flags hold the section.
pub const SECTION: SectionField = SectionField::at(38);

const UNMAPPED: u64 = 0xffff_ffff;
const _: () = assert!(size_of::<Page>() == to_usize(DESCRIPTOR_BYTES));

/// Whose memory is described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner(pub u64);

/// Where a frame's descriptor is.
#[must_use]
pub fn address_of(pfn: Pfn) -> u64 {
    DESCRIPTOR_MAP_BASE + pfn.number() * DESCRIPTOR_BYTES
}

impl Describe for Owner {
    type Descriptor = Page;
    type Words = [u64; 8];

    fn words(&self, frame: &Frame) -> [u64; 8] {
        let (flags, compound) = match frame.role {
            Role::Single(pfn) => (SECTION.set(0, pfn), 0),
            Role::Head { pfn, compound } => (SECTION.set(HEAD, pfn), compound.order().into()),
            Role::Tail { pfn, head, .. } => (SECTION.set(TAIL, pfn), address_of(head) | TAIL),
            // Found by its address: `MapLayout::head_address`.
            Role::SharedTail { .. } => (TAIL, TAIL),
        };
        let counts = u64::from(frame.refcount) | UNMAPPED << 32;
        [flags, compound, counts, self.0, 0, 0, 0, 0]
    }
}

impl Owner {
    /// The kernel's own memory.
    pub const RAM: Owner = Owner(0);

    /// The descriptor of a frame in compounds, or of a single one, as it is to be in its place.
    #[must_use]
    pub fn page(&self, pfn: Pfn, kind: Kind, layout: &MapLayout) -> Page {
        let compound = layout.compound();
        let head = pfn.align_down(compound.frames());
        let role = if compound == Compound::SINGLE {
            Role::Single(pfn)
        } else if pfn == head {
            Role::Head { pfn, compound }
        } else if layout.shares_tails() {
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
    /// The words that it is.
    #[must_use]
    pub fn words(&self) -> [u64; 8] {
        let Page { flags, compound, refcount, mapcount, owner, private: [a, b, c, d] } = *self;
        [flags, compound, u64::from(refcount) | u64::from(mapcount) << 32, owner, a, b, c, d]
    }

    /// Where the descriptor of its compound's head is, from its own address: what a tail of its own
    /// says, and what a shared one's place says.
    #[must_use]
    pub fn head_address(&self, address: u64, layout: &MapLayout) -> u64 {
        match (self.flags & TAIL != 0, self.compound & !TAIL) {
            (false, _) => address,
            (true, 0) => layout.head_address(to_usize(address)) as u64,
            (true, head) => head,
        }
    }

    /// What these words are, read as a descriptor.
    #[must_use]
    pub fn of_words(words: [u64; 8]) -> Page {
        let [flags, compound, counts, owner, private @ ..] = words;
        #[expect(clippy::cast_possible_truncation, reason = "its two halves")]
        let (refcount, mapcount) = (counts as u32, (counts >> 32) as u32);
        Page { flags, compound, refcount, mapcount, owner, private }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotmem::memmap::Memmap;

    fn pfn(number: u64) -> Pfn {
        Pfn::new(number).unwrap()
    }

    #[test]
    fn every_frame_of_a_compound_finds_its_head() {
        let owner = Owner(7);
        let own = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &owner);
        for memmap in [own, own.sharing_tails().unwrap()] {
            let layout = memmap.layout();
            assert_eq!(DESCRIPTOR_MAP_BASE % layout.base_alignment().0, 0);
            for number in [512 * 7, 512 * 7 + 1, 512 * 7 + 64, 512 * 8 - 1] {
                let page = owner.page(pfn(number), Kind::DeviceDax, layout);
                assert_eq!(Page::of_words(page.words()), page);
                let head = page.head_address(address_of(pfn(number)), layout);
                assert_eq!(head, address_of(pfn(512 * 7)), "{number}");
                assert_eq!(page.flags & HEAD != 0, number == 512 * 7);
                assert_eq!(page.refcount, u32::from(number == 512 * 7));
                assert_eq!((page.owner, page.mapcount), (7, u32::MAX));
            }
        }
    }

    #[test]
    fn a_single_frame_is_its_own_head() {
        let owner = Owner(7);
        let memmap = Memmap::new(Kind::FileSystemDax, Compound::SINGLE, &owner);
        let page = owner.page(pfn(32768 * 3 + 5), Kind::FileSystemDax, memmap.layout());
        assert_eq!(page.head_address(0x1240, memmap.layout()), 0x1240);
        assert_eq!(SECTION.get(page.flags), Some(pfn(32768 * 3)));
        assert_eq!((page.refcount, page.compound), (0, 0));
    }
}
