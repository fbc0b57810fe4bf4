//! Computes the layout of a descriptor map: where descriptors lie, and which descriptors share a
//! frame. A kernel that maps the pages of its descriptor map itself needs the layout.
//!
//! The map is an array in virtual memory: the descriptor of frame `n` lies at `n × size`. A
//! compound of 2 MiB has 512 descriptors. If a descriptor has 64 bytes, they fill 8 pages. The first
//! page holds the descriptor of the head and the tails with data of the compound. The other 7 pages
//! hold only tails, which are the same in every compound. So one read-only frame,
//! [described](crate::Memmap::describe_shared_tails) once, backs these pages of all compounds:
//!
//! ```text
//! virtual   │ head tail tail …  │ tail tail …  │ tail tail …  │ … │ head tail tail …  │ tail …
//! backed by │ a frame of its own│   shared     │   shared     │ … │ a frame of its own│ shared
//! ```
//!
//! A shared tail cannot name its head. But the descriptors of each compound begin at a multiple of
//! their total size. So the head's address is the tail's *virtual* address, rounded down to that
//! multiple ([`MapLayout::head_address`]).

use crate::kind::Compound;
use core::fmt;
use hotmem_addr::geometry::{FRAME_SHIFT, FRAME_SIZE};
use hotmem_addr::{Bytes, PfnRange};

/// The layout of a descriptor map.
///
/// ```
/// use core::{mem::MaybeUninit, ptr::NonNull};
/// use hotmem_memmap::{Backing, Bytes, Compound, Kind, Memmap, PfnRange, Slots};
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
/// # // A kernel maps pages of the map. The example allocates all of the map instead.
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
///         Backing::OwnFrame => map_writable(page.offset),
///         Backing::SharedTails => map_read_only(page.offset, &tails),
///     }
/// }
/// let first = NonNull::from(map.as_mut_slice()).cast();
/// // SAFETY: the pages with `Backing::OwnFrame` are mapped from `first` on, and nothing else uses them.
/// let slots = unsafe { Slots::mapped(range, first, layout) }?;
/// assert_eq!(memmap.describe(slots)?, Bytes(16 << 10));
/// # assert_eq!((own, shared), (4, 28));
/// # // SAFETY: the head at 512 and all of `tails` have been written.
/// # unsafe { assert_eq!((map[512].assume_init()[0], tails[63].assume_init()[0]), (1, 0)) };
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapLayout {
    descriptor_bytes: u64,
    compound: Compound,
    shares_tails: bool,
}

/// The frame that backs a page of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// A frame that backs no other page. [`MapLayout::frames_needed`] counts these frames.
    OwnFrame,
    /// The frame of shared tails, which backs many pages and is mapped read-only.
    SharedTails,
}

/// A page (4 KiB) of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPage {
    /// The offset of the page from the map's base.
    pub offset: Bytes,
    /// The frame that backs the page.
    pub backing: Backing,
}

/// The reason why tails cannot share a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShareError {
    /// The descriptors of a compound fill at most one frame, which holds the head.
    NothingToShare(Compound),
    /// The frame size is not a multiple of this descriptor size.
    BadDescriptorSize(usize),
    /// The tails with data of the compound do not fit in the head's frame.
    MetadataTails(u64),
}

impl MapLayout {
    /// Returns the layout in which each descriptor has its own memory.
    pub(crate) const fn unshared<D>(compound: Compound) -> MapLayout {
        // The descriptors of all possible frames must fit the address space.
        const { assert!(size_of::<D>() < 1 << 24, "a descriptor must be smaller than 16 MiB") };
        MapLayout { descriptor_bytes: size_of::<D>() as u64, compound, shares_tails: false }
    }

    /// Returns the layout in which tails share a frame.
    pub(crate) const fn sharing<D>(
        compound: Compound,
        metadata_tails: u64,
    ) -> Result<MapLayout, ShareError> {
        let layout = MapLayout { shares_tails: true, ..MapLayout::unshared::<D>(compound) };
        if !layout.descriptor_bytes.is_power_of_two() || layout.descriptor_bytes > FRAME_SIZE {
            return Err(ShareError::BadDescriptorSize(size_of::<D>()));
        }
        if layout.compound_bytes() <= FRAME_SIZE {
            return Err(ShareError::NothingToShare(compound));
        }
        if metadata_tails >= layout.written_per_compound() {
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
        self.shares_tails
    }

    /// Returns the number of bytes of the map for one compound, including shared pages.
    const fn compound_bytes(&self) -> u64 {
        self.descriptor_bytes << self.compound.order()
    }

    /// Returns how many descriptors of a compound are written, because they lie in unshared frames.
    pub(crate) const fn written_per_compound(&self) -> u64 {
        if self.shares_tails { FRAME_SIZE / self.descriptor_bytes } else { self.compound.frames() }
    }

    /// Returns the alignment of the map's base that [`head_address`](Self::head_address) requires.
    #[must_use]
    pub const fn base_alignment(&self) -> Bytes {
        Bytes(self.compound_bytes())
    }

    /// Returns the address of the head's descriptor. `descriptor` is the address of any descriptor of
    /// the same compound. Requires that the descriptor size is a power of two, and that the map's base
    /// is [aligned](Self::base_alignment).
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "the result is at most `descriptor`")]
    pub const fn head_address(&self, descriptor: usize) -> usize {
        (descriptor as u64 & !(self.compound_bytes() - 1)) as usize
    }

    /// Returns how many frames the map of `range` needs, except the frame of shared tails.
    #[must_use]
    pub fn frames_needed(&self, range: PfnRange) -> u64 {
        if self.shares_tails {
            return range.align_outward(self.compound.frames()).frames() >> self.compound.order();
        }
        let (first, end) = self.pages_around(range);
        end - first
    }

    /// Returns the pages of the map that hold the descriptors of `range`, in ascending order. If
    /// `range` does not consist of whole pageblocks and whole compounds, the first and the last page
    /// may also hold descriptors of frames outside `range`.
    pub fn pages(&self, range: PfnRange) -> impl Iterator<Item = MapPage> + Clone {
        let layout = *self;
        let range =
            if self.shares_tails { range.align_outward(self.compound.frames()) } else { range };
        let (first, end) = self.pages_around(range);
        (first..end).map(move |page| {
            let offset = page << FRAME_SHIFT;
            let is_unshared =
                !layout.shares_tails || offset.is_multiple_of(layout.compound_bytes());
            let backing = if is_unshared { Backing::OwnFrame } else { Backing::SharedTails };
            MapPage { offset: Bytes(offset), backing }
        })
    }

    /// Returns the first page of the map that holds descriptors of `range`, and the page after the
    /// last one.
    const fn pages_around(&self, range: PfnRange) -> (u64, u64) {
        if range.is_empty() {
            return (0, 0);
        }
        // The products cannot wrap: frame numbers are at most 2^40, and descriptors are smaller than
        // 16 MiB.
        let first_byte = range.start().number() * self.descriptor_bytes;
        let end_byte = range.end().number() * self.descriptor_bytes;
        (first_byte >> FRAME_SHIFT, end_byte.div_ceil(FRAME_SIZE))
    }
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShareError::NothingToShare(compound) => {
                write!(f, "the descriptors of a {compound:?} fill no more than one frame")
            }
            ShareError::BadDescriptorSize(bytes) => {
                write!(f, "the frame size is not a multiple of descriptors of {bytes} bytes")
            }
            ShareError::MetadataTails(tails) => {
                write!(f, "{tails} tails with data of a compound do not fit in the head's frame")
            }
        }
    }
}

impl core::error::Error for ShareError {}
