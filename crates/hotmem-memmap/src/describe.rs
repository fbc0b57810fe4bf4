//! The kernel's definition of its descriptors.

use crate::kind::Compound;
use crate::words::{Arithmetic, Words};
use core::mem::MaybeUninit;
use hotmem_addr::Pfn;
use hotmem_addr::geometry::{PFN_LIMIT, SECTION_FRAMES};

/// Defines the contents of descriptors. Usually the device whose memory is described implements it.
///
/// [`words`](Self::words) alone decides what is written. The other items only influence how it is
/// written.
pub trait Describe {
    /// The kernel's own type. It must be as large as [`Words`](Self::Words) and at least as
    /// aligned; otherwise the program does not compile. It must hold addresses instead of pointers:
    /// a pointer that was written as a word has no provenance.
    type Descriptor;
    /// The descriptor as 64-bit words: `[u64; 8]` for 64 bytes.
    type Words: Words;

    /// The number of frames, a power of two, at whose multiples descriptors may differ by more than
    /// the constant step.
    const RUN: u64 = SECTION_FRAMES as u64;
    /// The number of first tails of a compound that hold data of the compound and so differ from
    /// the other tails.
    const METADATA_TAILS: u64 = 0;
    /// Whether [`pageblock`](Self::pageblock) is called.
    const READS_PAGEBLOCKS: bool = false;

    /// Returns the descriptor of a frame.
    ///
    /// From one frame to the next in the same role and compound, each word should grow by the same
    /// step, often 0, except at multiples of [`RUN`](Self::RUN) frames and after the
    /// [`METADATA_TAILS`](Self::METADATA_TAILS). The last descriptor of each run is compared with
    /// the step; if it differs, the run is written one by one.
    fn words(&self, frame: &Frame) -> Self::Words;

    /// Returns whether each write of a descriptor is observed, for example by a tracepoint or a
    /// sanitizer. If so, all descriptors are written one by one, by [`write`](Self::write).
    fn traced(&self) -> bool {
        false
    }

    /// Writes one descriptor if [`traced`](Self::traced), in the way that the kernel's instruments
    /// expect, for example field by field. It must leave exactly these words.
    fn write(&self, slot: &mut MaybeUninit<Self::Descriptor>, words: &Self::Words) {
        words.write(slot);
    }

    /// Called for each pageblock whose first frame `pfn` is described, lowest first, so that a
    /// kernel can initialise its own data of a pageblock. Called only if
    /// [`READS_PAGEBLOCKS`](Self::READS_PAGEBLOCKS).
    ///
    /// The descriptor of that frame has been written by ordinary stores and may be read at once.
    /// `slot` is `None` if the frame is a [shared tail](crate::Memmap::sharing_tails) of a compound
    /// that is larger than a pageblock, because its slot need not be mapped yet.
    fn pageblock(&self, pfn: Pfn, slot: Option<&MaybeUninit<Self::Descriptor>>) {
        let _ = (pfn, slot);
    }
}

/// A frame that is to be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The frame's role in its page.
    pub role: Role,
    /// Its initial reference count; see [`Kind::refcount`](crate::Kind::refcount).
    pub refcount: u32,
}

/// The role of a frame in its page.
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
    /// Any tail of any compound: one descriptor backs many. It names neither its frame nor its
    /// head, so a kernel finds the head from the descriptor's *address*:
    /// [`MapLayout::head_address`](crate::MapLayout::head_address).
    SharedTail {
        /// The size of the compounds.
        compound: Compound,
    },
}

/// The bits of a descriptor's flags that hold the number of its section, for kernels that find a
/// descriptor's frame through the section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionField {
    shift: u32,
}

impl SectionField {
    /// The number of bits that any section's number fits in.
    pub const BITS: u32 = (PFN_LIMIT / SECTION_FRAMES as u64).ilog2() + 1;

    const MASK: u64 = (1 << SectionField::BITS) - 1;

    /// Returns the field that begins at bit `shift`.
    ///
    /// # Panics
    /// Panics if there is no room in 64 bits; in a constant this is a compile error.
    #[must_use]
    pub const fn at(shift: u32) -> SectionField {
        assert!(
            shift <= u64::BITS - SectionField::BITS,
            "a section's number does not fit above this bit"
        );
        SectionField { shift }
    }

    /// Returns `flags` with the number of the section of `pfn` in this field.
    #[must_use]
    pub const fn set(self, flags: u64, pfn: Pfn) -> u64 {
        let section = pfn.number() / SECTION_FRAMES as u64;
        flags & !(SectionField::MASK << self.shift) | section << self.shift
    }

    /// Returns the first frame of the section in `flags`; `None` if there can be no such section.
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
    #[should_panic(expected = "does not fit")]
    fn a_field_beyond_the_word_is_refused() {
        let _ = SectionField::at(u64::BITS - SectionField::BITS + 1);
    }
}
