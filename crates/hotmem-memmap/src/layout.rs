//! The layout of a descriptor map: where descriptors lie, and which of them share a frame. A kernel
//! that maps the pages of its descriptor map itself needs it.
//!
//! The map is an array in virtual memory: the descriptor of frame `n` lies at `n × size`. A
//! compound of 2 MiB has 512 descriptors; at 64 bytes they fill 8 frames. The first holds the head
//! and the tails with data of their own. The other 7 hold only tails, which are the same in every
//! compound. So one read-only frame, [described](crate::Memmap::describe_shared_tails) once, backs
//! all of these:
//!
//! ```text
//! virtual   │ head tail tail …  │ tail tail …  │ tail tail …  │ … │ head tail tail …  │ tail …
//! backed by │ a frame of its own│   shared     │   shared     │ … │ a frame of its own│ shared
//! ```
//!
//! A shared tail cannot name its head. But each compound's descriptors begin at a multiple of their
//! size, so the head's address is the tail's *virtual* address, rounded down
//! ([`MapLayout::head_address`]).

use crate::kind::Compound;
use core::fmt;
use hotmem_addr::geometry::{FRAME_SHIFT, FRAME_SIZE};
use hotmem_addr::{Bytes, PfnRange};

/// How the descriptors of compounds lie in the map.
///
/// ```
/// use core::{mem::MaybeUninit, ptr::NonNull};
/// use hotmem_addr::{Bytes, PfnRange};
/// use hotmem_memmap::{Backing, Compound, Kind, Memmap, Slots};
/// # use hotmem_memmap::{Describe, Frame};
/// # type Page = [u64; 8];
/// # struct Device;
/// # impl Describe for Device {
/// #     type Descriptor = Page;
/// #     type Words = Page;
/// #     fn words(&self, frame: &Frame) -> Page {
/// #         [frame.refcount.into(), 0, 0, 0, 0, 0, 0, 7]
/// #     }
/// # }
/// # let device = Device;
/// # // All of the map is there, where a kernel maps pages of it.
/// # let mut map = vec![MaybeUninit::<Page>::uninit(); 2048];
/// # let (mut own, mut shared) = (0, 0);
/// # let mut map_writable = |_: Bytes| own += 1;
/// # let mut map_read_only = |_: Bytes, _: &[MaybeUninit<Page>]| shared += 1;
///
/// let range = PfnRange::from_bytes(4 << 30, Bytes::mib(8))?;
/// let memmap = Memmap::new(Kind::DeviceDax, Compound::MIB_2, &device).sharing_tails()?;
/// let layout = memmap.layout();
/// assert_eq!(layout.frames_needed(range), 4);
///
/// let mut tails = [MaybeUninit::<Page>::uninit(); 64];
/// memmap.describe_shared_tails(&mut tails);
/// for page in layout.pages(range) {
///     match page.backing {
///         Backing::Own => map_writable(page.offset),
///         Backing::SharedTails => map_read_only(page.offset, &tails),
///     }
/// }
/// let first = NonNull::from(map.as_mut_slice()).cast();
/// // SAFETY: the pages that are backed by frames of their own are mapped from here on, and nothing else uses them.
/// let slots = unsafe { Slots::mapped(range, first, layout) }?;
/// assert_eq!(memmap.describe(slots)?, Bytes::kib(16));
/// # assert_eq!((own, shared), (4, 28));
/// # // SAFETY: a head is written, and so is the shared frame.
/// # unsafe { assert_eq!((map[512].assume_init()[0], tails[63].assume_init()[0]), (1, 0)) };
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapLayout {
    descriptor: u64,
    compound: Compound,
    shared: bool,
}

/// The frame that backs a page of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A frame of its own: the next of those that [`MapLayout::frames_needed`] counted.
    Own,
    /// The frame of shared tails, read-only.
    SharedTails,
}

/// A page (4 KiB) of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPage {
    /// Its offset from the map's base.
    pub offset: Bytes,
    /// What backs it.
    pub backing: Backing,
}

/// The reason why tails cannot share a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareError {
    /// The descriptors of a compound fill no more than the frame that holds its head.
    NothingToShare(Compound),
    /// The frame size is not a multiple of this descriptor size.
    DescriptorSize(usize),
    /// The tails with data of their own do not fit in the head's frame.
    MetadataTails(u64),
}

impl MapLayout {
    pub(crate) const fn each<D>(compound: Compound) -> MapLayout {
        // The descriptors of all possible frames must fit the address space.
        const { assert!(size_of::<D>() < 1 << 24, "a descriptor must be smaller than 16 MiB") };
        MapLayout { descriptor: size_of::<D>() as u64, compound, shared: false }
    }

    pub(crate) const fn sharing<D>(
        compound: Compound,
        metadata_tails: u64,
    ) -> Result<MapLayout, ShareError> {
        let layout = MapLayout { shared: true, ..MapLayout::each::<D>(compound) };
        if !layout.descriptor.is_power_of_two() || layout.descriptor > FRAME_SIZE {
            return Err(ShareError::DescriptorSize(size_of::<D>()));
        }
        if layout.compound_bytes() <= FRAME_SIZE {
            return Err(ShareError::NothingToShare(compound));
        }
        if metadata_tails >= layout.written_of_compound() {
            return Err(ShareError::MetadataTails(metadata_tails));
        }
        Ok(layout)
    }

    /// Returns the size of the compounds.
    #[must_use]
    pub const fn compound(&self) -> Compound {
        self.compound
    }

    /// Returns whether tails share a frame.
    #[must_use]
    pub const fn shares_tails(&self) -> bool {
        self.shared
    }

    /// Returns the bytes of map for one compound, shared pages included.
    const fn compound_bytes(&self) -> u64 {
        self.descriptor << self.compound.order()
    }

    /// Returns how many descriptors of a compound lie in frames of their own.
    pub(crate) const fn written_of_compound(&self) -> u64 {
        if self.shared { FRAME_SIZE / self.descriptor } else { self.compound.frames() }
    }

    /// Returns the alignment of the map's base that [`head_address`](Self::head_address) requires.
    #[must_use]
    pub const fn base_alignment(&self) -> Bytes {
        Bytes(self.compound_bytes())
    }

    /// Returns the address of the head's descriptor, given that of any descriptor of the same
    /// compound. Requires descriptor sizes that are powers of two and an
    /// [aligned](Self::base_alignment) base.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "no more than it was")]
    pub const fn head_address(&self, descriptor: usize) -> usize {
        (descriptor as u64 & !(self.compound_bytes() - 1)) as usize
    }

    /// Returns how many frames the map of `range` needs, without the one of shared tails.
    #[must_use]
    pub fn frames_needed(&self, range: PfnRange) -> u64 {
        if self.shared {
            return range.align_outward(self.compound.frames()).frames() >> self.compound.order();
        }
        let (first, end) = self.pages_around(range);
        end - first
    }

    /// Returns the map's pages for `range`, from the bottom up. Those at the ends may hold
    /// descriptors of neighbouring ranges too, unless `range` is a multiple of pageblocks or larger
    /// compounds.
    pub fn pages(&self, range: PfnRange) -> impl Iterator<Item = MapPage> + Clone {
        let layout = *self;
        let range = if self.shared { range.align_outward(self.compound.frames()) } else { range };
        let (first, end) = self.pages_around(range);
        (first..end).map(move |page| {
            let offset = page << FRAME_SHIFT;
            let own = !layout.shared || offset.is_multiple_of(layout.compound_bytes());
            let backing = if own { Backing::Own } else { Backing::SharedTails };
            MapPage { offset: Bytes(offset), backing }
        })
    }

    /// Returns the first page of the map that holds descriptors of `range`, and one past the last.
    const fn pages_around(&self, range: PfnRange) -> (u64, u64) {
        if range.is_empty() {
            return (0, 0);
        }
        // At most 2^40 frames with descriptors of less than 16 MiB: this cannot wrap.
        let bytes =
            (range.start().number() * self.descriptor, range.end().number() * self.descriptor);
        (bytes.0 >> FRAME_SHIFT, bytes.1.div_ceil(FRAME_SIZE))
    }
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareError::NothingToShare(compound) => {
                write!(f, "the descriptors of a {compound:?} fill no more than one frame")
            }
            ShareError::DescriptorSize(bytes) => {
                write!(f, "the frame size is not a multiple of descriptors of {bytes} bytes")
            }
            ShareError::MetadataTails(tails) => {
                write!(f, "{tails} tails with data of their own do not fit in the head's frame")
            }
        }
    }
}

impl core::error::Error for ShareError {}
