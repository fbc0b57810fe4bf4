//! Defines the trait by which a kernel defines its descriptors.

use crate::kind::Compound;
use crate::words::{Arithmetic, Words};
use core::mem::MaybeUninit;
use hotmem_addr::Pfn;
use hotmem_addr::geometry::{PFN_LIMIT, SECTION_FRAMES};

/// Defines the contents of descriptors. Usually the type of the device whose memory is described
/// implements this trait.
///
/// [`words`](Self::words) alone determines the contents of descriptors. The other items only influence
/// how the descriptors are written.
pub trait Describe {
    /// The kernel's type of descriptors. It must be as large as [`Words`](Self::Words) and at least as
    /// aligned. Otherwise the program does not compile. It must hold addresses instead of pointers,
    /// because a pointer that was written as a word has no provenance.
    type Descriptor;
    /// The descriptor as 64-bit words: `[u64; 8]` for 64 bytes.
    type Words: Words;

    /// The number of frames in a run, a power of two. A run begins at each multiple of this number.
    /// Within a run, each word of a descriptor should differ from that of the descriptor before by
    /// the same amount, its *step*: see [`words`](Self::words).
    const RUN_FRAMES: u64 = SECTION_FRAMES as u64;
    /// How many of the first tails of a compound hold data of the compound, and so differ from the
    /// other tails.
    const METADATA_TAILS: u64 = 0;
    /// Whether [`init_pageblock`](Self::init_pageblock) must be called.
    const INITIALISES_PAGEBLOCKS: bool = false;

    /// Returns the words of the descriptor of a frame.
    ///
    /// From one frame to the next in the same role and compound, each word should grow by a
    /// constant step, which is often 0. The step may change at multiples of
    /// [`RUN_FRAMES`](Self::RUN_FRAMES) frames and after the
    /// [`METADATA_TAILS`](Self::METADATA_TAILS). If the last descriptor of a run does not follow
    /// the step, the descriptors of the run are written one by one. If only descriptors in the
    /// middle of a run do not follow the step, they are written wrongly.
    fn words(&self, frame: &Frame) -> Self::Words;

    /// Returns whether each write of a descriptor is observed, for example by a tracepoint or a
    /// sanitizer. If so, all descriptors are written one by one, by [`write`](Self::write).
    fn traced(&self) -> bool {
        false
    }

    /// Writes `words` to `slot`, in the way that the kernel's instruments expect, for example field by
    /// field. Called only if [`traced`](Self::traced) returns true. Afterwards the slot must hold
    /// exactly these words.
    fn write(&self, slot: &mut MaybeUninit<Self::Descriptor>, words: &Self::Words) {
        words.write(slot);
    }

    /// Initialises the kernel's own data of a pageblock. Called for each pageblock whose first
    /// frame `pfn` is described, in ascending order, if
    /// [`INITIALISES_PAGEBLOCKS`](Self::INITIALISES_PAGEBLOCKS) is true.
    ///
    /// The descriptor in `slot` has been written by ordinary stores and may be read at once. `slot` is
    /// `None` if the frame is a [shared tail](crate::Memmap::sharing_tails) of a compound that is
    /// larger than a pageblock, because the slot of such a tail need not be mapped yet.
    fn init_pageblock(&self, pfn: Pfn, slot: Option<&MaybeUninit<Self::Descriptor>>) {
        let _ = (pfn, slot);
    }
}

/// A frame that is to be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The frame's role in its page.
    pub role: Role,
    /// The frame's initial reference count: see [`Kind::refcount`](crate::Kind::refcount).
    pub refcount: u32,
}

/// The role of a frame in its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The only frame of a page.
    Single(Pfn),
    /// The first frame of a compound.
    Head {
        /// The frame.
        pfn: Pfn,
        /// The compound.
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
    /// A tail whose descriptor is shared by tails of all compounds. The descriptor names neither its
    /// frame nor its head, so a kernel computes the head from the descriptor's *address*:
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
    /// The number of bits in the field. They suffice for the number of any section.
    pub const BITS: u32 = (PFN_LIMIT / SECTION_FRAMES as u64).ilog2() + 1;

    const MASK: u64 = (1 << SectionField::BITS) - 1;

    /// Returns the field that begins at bit `shift`.
    ///
    /// # Panics
    /// Panics if the field does not fit in 64 bits. In a constant this is a compile error.
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

    /// Returns the first frame of the section whose number is in `flags`, or `None` if no section can
    /// have that number.
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
    fn every_section_fits_and_the_other_flags_do_not_change() {
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
    fn a_field_that_does_not_fit_in_64_bits_is_refused() {
        let _ = SectionField::at(u64::BITS - SectionField::BITS + 1);
    }
}
