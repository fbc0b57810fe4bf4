//! What a kernel says about its descriptors.

use crate::kind::Compound;
use crate::words::{Arithmetic, Words};
use core::mem::MaybeUninit;
use hotmem_addr::Pfn;
use hotmem_addr::geometry::{PFN_LIMIT, SECTION_FRAMES};

/// Says what descriptors contain; usually the device whose memory they describe.
///
/// [`words`](Self::words) alone decides what is written. Everything else says how it may be
/// written faster, or must be written slower.
pub trait Describe {
    /// The kernel's own type: as large as [`Words`](Self::Words), and aligned as they are or more.
    /// Anything else does not compile. What it points to it keeps as an address: a pointer that was
    /// written as a word has no provenance.
    type Descriptor;
    /// The descriptor as 64-bit words: `[u64; 8]` for 64 bytes.
    type Words: Words;

    /// Frames after which descriptors may differ by more than a constant step: a power of two.
    const RUN: u64 = SECTION_FRAMES as u64;
    /// The first tails of a compound that are unlike the others, because the compound's own data
    /// lie in them.
    const METADATA_TAILS: u64 = 0;
    /// Whether [`pageblock`](Self::pageblock) wants to be called.
    const READS_PAGEBLOCKS: bool = false;

    /// The descriptor of a frame.
    ///
    /// From one frame to the next in the same role and of the same compound, each word grows by
    /// the same step, often 0, except at multiples of [`RUN`](Self::RUN) frames and behind the
    /// [`METADATA_TAILS`](Self::METADATA_TAILS). Whether the last descriptor of such a run lies
    /// where the step leads is looked at; if it does not, the run is written one by one.
    fn words(&self, frame: &Frame) -> Self::Words;

    /// Whether somebody watches each descriptor being written (a tracepoint, a sanitizer): all of
    /// them are then written one by one, by [`write`](Self::write).
    fn traced(&self) -> bool {
        false
    }

    /// Writes one descriptor while [`traced`](Self::traced): field by field, if that is what the
    /// kernel's instruments want to see. It must leave exactly these words.
    fn write(&self, slot: &mut MaybeUninit<Self::Descriptor>, words: &Self::Words) {
        words.write(slot);
    }

    /// A pageblock that begins at `pfn` is being described: where a kernel that keeps something for
    /// each pageblock writes it. Called only if [`READS_PAGEBLOCKS`](Self::READS_PAGEBLOCKS), once
    /// for each pageblock whose first frame is described, lowest first.
    ///
    /// The descriptor of that frame has been written by ordinary stores and may be read right away.
    /// There is none to read where it is one of the tails that compounds larger than a pageblock
    /// [share](crate::Memmap::sharing_tails): their slots need not be mapped yet.
    fn pageblock(&self, pfn: Pfn, slot: Option<&MaybeUninit<Self::Descriptor>>) {
        let _ = (pfn, slot);
    }
}

/// A frame that is to be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Its place.
    pub role: Role,
    /// The reference count that it starts with; see [`Kind::refcount`](crate::Kind::refcount).
    pub refcount: u32,
}

/// A frame's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A page by itself.
    Single(Pfn),
    /// The first frame of a compound.
    Head {
        /// The frame.
        pfn: Pfn,
        /// Its compound.
        compound: Compound,
    },
    /// Another frame of a compound.
    Tail {
        /// The frame.
        pfn: Pfn,
        /// The compound's first frame.
        head: Pfn,
        /// The compound.
        compound: Compound,
    },
    /// Any tail of any compound: one descriptor in the place of many. It can know neither its own
    /// frame nor its head, so a kernel finds the head from the descriptor's *address*:
    /// [`MapLayout::head_address`](crate::MapLayout::head_address).
    SharedTail {
        /// The size of the compounds.
        compound: Compound,
    },
}

/// The bits of a descriptor's flags in which it keeps its section's number, for kernels that need
/// it to get from a descriptor to its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionField {
    shift: u32,
}

impl SectionField {
    /// Bits that hold the number of any section.
    pub const BITS: u32 = (PFN_LIMIT / SECTION_FRAMES as u64).ilog2() + 1;

    const MASK: u64 = (1 << SectionField::BITS) - 1;

    /// From bit `shift` up.
    ///
    /// # Panics
    /// If there is no room in 64 bits; as a constant, the program does not compile.
    #[must_use]
    pub const fn at(shift: u32) -> SectionField {
        assert!(shift <= u64::BITS - SectionField::BITS, "no room for a section's number");
        SectionField { shift }
    }

    /// `flags` with the section of `pfn`.
    #[must_use]
    pub const fn set(self, flags: u64, pfn: Pfn) -> u64 {
        let section = pfn.number() / SECTION_FRAMES as u64;
        flags & !(SectionField::MASK << self.shift) | section << self.shift
    }

    /// The first frame of the section in `flags`; `None` if there can be no such section.
    #[must_use]
    pub const fn get(self, flags: u64) -> Option<Pfn> {
        let section = flags >> self.shift & SectionField::MASK;
        Pfn::new(section * SECTION_FRAMES as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_fits_and_leaves_the_other_flags_alone() {
        for shift in [0, 5, u64::BITS - SectionField::BITS] {
            let field = SectionField::at(shift);
            for number in [0, 1, SECTION_FRAMES as u64, PFN_LIMIT - 1, PFN_LIMIT] {
                let pfn = Pfn::new(number).unwrap();
                let section = pfn.align_down(SECTION_FRAMES as u64);
                for flags in [0, u64::MAX] {
                    let set = field.set(flags, pfn);
                    assert_eq!(field.get(set), Some(section));
                    assert_eq!(field.set(set, Pfn::ZERO), field.set(flags, Pfn::ZERO));
                }
            }
            assert_eq!(field.get(u64::MAX), None);
        }
    }

    #[test]
    #[should_panic(expected = "no room")]
    fn a_field_beyond_the_word_is_refused() {
        let _ = SectionField::at(u64::BITS - SectionField::BITS + 1);
    }
}
