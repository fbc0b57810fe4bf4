//! Defines requests, and the errors of allocations and frees.

use crate::addr::{Pfn, PfnRange};
use crate::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES, PFN_LIMIT, SMALL_FRAMES};
use crate::words::{Grain, LongShape, NodeId, RunShape, Zone};
use core::alloc::Layout;
use core::fmt;
use core::ops::{Bound, RangeBounds};

/// A request for physically contiguous frames.
///
/// [`Frames::alloc`](crate::Frames::alloc) finds a free run of several frames only where the length allows it to begin, so
/// that its cost stays small. [`Frames::alloc_contiguous`](crate::Frames::alloc_contiguous) finds each free run:
///
/// | frames | where [`Frames::alloc`](crate::Frames::alloc) finds them |
/// |---|---|
/// | 1 | anywhere |
/// | 2 to 32 | within 32 frames that begin at a multiple of 32 |
/// | 33 to 256 | at a multiple of 32, within a pageblock (2 MiB) |
/// | 257 to 32 768 | at a wholly free pageblock, within a section (128 MiB) |
/// | more | at a wholly free section |
///
/// A run of more than 256 frames is taken from pageblocks that are wholly free, also the last one.
///
/// ```
/// use core::alloc::Layout;
/// use hotmem::{Pfn, AllocRequest};
/// let one = AllocRequest::frames(1);
/// let huge_page = AllocRequest::frames(512).aligned(512).movable();
/// let dma = AllocRequest::frames(16).within(..Pfn::containing(1 << 32).unwrap());
/// let table = AllocRequest::from(Layout::new::<[u64; 2048]>());
/// assert_eq!(table, AllocRequest::frames(4));
/// # let _ = (one, huge_page, dma);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocRequest {
    pub(super) frames: u64,
    pub(super) align: u64,
    pub(super) lower_bound: Pfn,
    pub(super) upper_bound: Pfn,
    movable: bool,
    pub(super) place: Option<Pfn>,
    pub(super) boot_only: bool,
    pub(super) node: Option<NodeChoice>,
    /// Whether the request accepts only some pageblocks of its zones. Such a request does not change
    /// the CPU's hints. `with_restricted` computes the value, so that no allocation has to.
    pub(super) restricted: bool,
}

/// The nodes that an [`AllocRequest`] is for. A request without a choice prefers the node of its
/// CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeChoice {
    /// Prefers this node. If the node has no suitable memory, the other nodes follow, in the order
    /// of their numbers modulo [`MAX_NODES`](crate::MAX_NODES). A kernel that knows the distances
    /// between nodes tries the nearest ones first, each by [`Only`](Self::Only). If the machine does
    /// not know this node, the first online node stands for it.
    Near(NodeId),
    /// Requires this node.
    Only(NodeId),
    /// Prefers every other node to this one. For frames to which data is migrated because memory of
    /// this node is to be removed.
    Avoiding(NodeId),
}

/// The units that have a fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    Frame,
    /// Several frames that fit into a word of a frame bitmap.
    Run(RunShape),
    /// More frames than a word has.
    LongRun(LongShape),
    Pageblock,
}

/// The reason why an allocation failed. A failed allocation changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// No suitable memory is free where the call searches: see [`AllocRequest`]. No operation in flight
    /// could have hidden any from the search. But the search may have missed a run of 2 to 256 frames that
    /// was freed in parts meanwhile. Before an allocation fails, it takes back the memory
    /// that pending requests to take memory offline have isolated; not that of a request whose poll
    /// runs at this moment, or has returned [`Progress::Working`](crate::Progress::Working): such a
    /// request goes on, and would have to do its work again.
    OutOfMemory,
    /// No suitable memory was found, but other CPUs were allocating or freeing, or the host was
    /// working on memory that would suit: the caller may try again.
    Busy,
    /// For a request for an exact place: this part of the place is not free (it is in use,
    /// isolated, offline or absent), or the place does not lie within one region. Isolated memory is
    /// not taken back for such a request, because a caller that tries one place after the other
    /// would undo what requests to take memory offline have achieved.
    NotFree(PfnRange),
    /// The request is malformed.
    Bad(BadRequest),
}

/// The reason why an [`AllocRequest`] is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadRequest {
    /// The request is for no frames.
    Empty,
    /// The alignment is not a power of two.
    Alignment {
        /// The requested alignment, in frames.
        frames: u64,
    },
    /// The length or the alignment is larger than the number of frames that a machine can have.
    TooLong {
        /// The requested length, in frames.
        frames: u64,
    },
    /// The request is for several frames, and the call allocates only single frames.
    NotSingle {
        /// The requested length, in frames.
        frames: u64,
    },
    /// The exact place is not aligned as requested, or does not lie within the requested bounds.
    Place(Pfn),
}

impl AllocRequest {
    /// Requests `n` frames (4 KiB each) of kernel memory, anywhere.
    #[must_use]
    pub const fn frames(n: u64) -> AllocRequest {
        AllocRequest {
            frames: n,
            align: 1,
            lower_bound: Pfn::ZERO,
            upper_bound: Pfn::LIMIT,
            movable: false,
            place: None,
            boot_only: false,
            node: None,
            restricted: false,
        }
    }

    /// Requests 2^`order` frames, aligned to their size, as a buddy allocator allocates them.
    #[must_use]
    pub const fn order(order: u32) -> AllocRequest {
        let frames = if order < 64 { 1 << order } else { 0 };
        AllocRequest::frames(frames).aligned(frames)
    }

    /// Requires a start at a multiple of `frames`, which must be a power of two.
    #[must_use]
    pub const fn aligned(self, frames: u64) -> AllocRequest {
        AllocRequest { align: frames, ..self }.with_restricted()
    }

    /// Requires that all frames lie in this range, for example because a device cannot address all
    /// memory. If the range has a start, and no exact place is requested, an allocation of more
    /// than 256 frames starts at a pageblock (2 MiB), and one of more than a section (128 MiB)
    /// starts at a section.
    #[must_use]
    #[inline]
    pub fn within(self, range: impl RangeBounds<Pfn>) -> AllocRequest {
        let after = |pfn: &Pfn| pfn.checked_add(1).unwrap_or(Pfn::LIMIT);
        let lower_bound = match range.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => after(before),
            Bound::Unbounded => Pfn::ZERO,
        };
        let upper_bound = match range.end_bound() {
            Bound::Included(last) => after(last),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => Pfn::LIMIT,
        };
        AllocRequest { lower_bound, upper_bound, ..self }.with_restricted()
    }

    /// Allows movable memory, and prefers it. The caller promises to answer
    /// [`Hooks::migrate`](crate::Hooks::migrate) for these frames.
    #[must_use]
    pub const fn movable(self) -> AllocRequest {
        AllocRequest { movable: true, ..self }
    }

    /// Requires exactly the frames that begin at `pfn`.
    #[must_use]
    pub const fn at(self, pfn: Pfn) -> AllocRequest {
        AllocRequest { place: Some(pfn), ..self }
    }

    /// Prefers or requires a node.
    #[must_use]
    pub const fn node(self, choice: NodeChoice) -> AllocRequest {
        AllocRequest { node: Some(choice), ..self }.with_restricted()
    }

    /// Requires boot memory, which is never removed: for frames that cannot be migrated, and that
    /// must not prevent a removal.
    #[must_use]
    pub const fn in_boot_memory(self) -> AllocRequest {
        AllocRequest { boot_only: true, ..self }.with_restricted()
    }

    pub(crate) const fn check(&self) -> Result<(), AllocError> {
        if self.frames == 0 {
            return Err(AllocError::Bad(BadRequest::Empty));
        }
        if !self.align.is_power_of_two() {
            return Err(AllocError::Bad(BadRequest::Alignment { frames: self.align }));
        }
        if self.frames > PFN_LIMIT || self.align > PFN_LIMIT {
            return Err(AllocError::Bad(BadRequest::TooLong { frames: self.frames }));
        }
        if let Some(at) = self.place {
            let end = match at.checked_add(self.frames) {
                Some(end) => end,
                None => return Err(AllocError::Bad(BadRequest::Place(at))),
            };
            let is_within = self.lower_bound.number() <= at.number()
                && end.number() <= self.upper_bound.number();
            if !at.number().is_multiple_of(self.align) || !is_within {
                return Err(AllocError::Bad(BadRequest::Place(at)));
            }
        }
        Ok(())
    }

    /// Returns the unit if the request is for exactly one unit, anywhere.
    #[inline]
    pub(super) fn unrestricted_unit(&self) -> Option<Unit> {
        const PAGEBLOCK: u64 = PAGEBLOCK_FRAMES as u64;
        if self.place.is_some() || self.restricted {
            return None;
        }
        // Where no instruction counts bits, this is shorter than `u64::is_power_of_two`.
        let is_power_of_two = self.align & self.align.wrapping_sub(1) == 0;
        match (self.frames, self.align) {
            (1, 1) => Some(Unit::Frame),
            (PAGEBLOCK, 1..=PAGEBLOCK) if is_power_of_two => Some(Unit::Pageblock),
            (frames, align) if is_power_of_two => match RunShape::new(frames, align) {
                Some(shape) => Some(Unit::Run(shape)),
                None => LongShape::new(frames, align).map(Unit::LongRun),
            },
            _ => None,
        }
    }

    /// Returns the grain of a request for a part of a pageblock. Requests for boot memory have the
    /// grain of single frames, whatever their length, so that the engine's metadata stays together.
    pub(crate) const fn grain(&self) -> Grain {
        if self.frames == 1 || self.boot_only { Grain::Frame } else { Grain::Run }
    }

    /// Returns whether the request is short enough for a run of bits of a frame bitmap.
    pub(super) const fn is_small(&self) -> bool {
        self.frames <= SMALL_FRAMES as u64
    }

    pub(super) const fn only_node(&self) -> Option<NodeId> {
        match self.node {
            Some(NodeChoice::Only(node)) => Some(node),
            _ => None,
        }
    }

    /// Returns the node that the request prefers or requires, if it is restricted in no other way.
    pub(super) const fn restricting_node(&self) -> Option<NodeId> {
        match self.node {
            Some(NodeChoice::Near(node) | NodeChoice::Only(node)) if !self.excludes_addresses() => {
                Some(node)
            }
            _ => None,
        }
    }

    /// Returns the node from which the request needs one frame, if it is restricted in no other way.
    #[inline(always)]
    pub(super) const fn node_of_frame(&self) -> Option<NodeId> {
        if self.frames == 1 && self.align == 1 && self.place.is_none() {
            self.restricting_node()
        } else {
            None
        }
    }

    /// Computes `restricted`, after another field was set.
    const fn with_restricted(self) -> AllocRequest {
        AllocRequest { restricted: self.node.is_some() || self.excludes_addresses(), ..self }
    }

    /// Returns whether the request accepts only some pageblocks of a node.
    const fn excludes_addresses(&self) -> bool {
        self.boot_only
            || self.upper_bound.number() != PFN_LIMIT
            || self.lower_bound.number() != 0
            || self.align > PAGEBLOCK_FRAMES as u64
    }

    /// Returns the zones to search, in order.
    #[inline]
    pub(crate) const fn zones(&self) -> &'static [Zone] {
        if self.movable { &[Zone::Movable, Zone::Kernel] } else { &[Zone::Kernel] }
    }

    /// Returns the zones to search, in order. The flag of a zone says whether to search only above
    /// low memory. A request with an upper bound searches the whole zone at once.
    #[inline]
    pub(crate) const fn steps(&self, has_low: bool) -> &'static [(Zone, bool)] {
        const ALL: [(Zone, bool); 3] =
            [(Zone::Movable, false), (Zone::Kernel, true), (Zone::Kernel, false)];
        const WITHOUT_LOW: [(Zone, bool); 2] = [ALL[0], ALL[2]];
        let prefers_above = has_low && self.upper_bound.number() == PFN_LIMIT;
        match (self.movable, prefers_above) {
            (true, true) => &ALL,
            (true, false) => &WITHOUT_LOW,
            (false, true) => ALL.split_at(1).1,
            (false, false) => WITHOUT_LOW.split_at(1).1,
        }
    }
}

/// Requests whole frames for an object of this layout, at least one frame.
impl From<Layout> for AllocRequest {
    fn from(layout: Layout) -> AllocRequest {
        let frames = |bytes: usize| (bytes as u64).div_ceil(FRAME_SIZE);
        AllocRequest::frames(frames(layout.size().max(1))).aligned(frames(layout.align()))
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::OutOfMemory => f.write_str("out of memory"),
            AllocError::Busy => {
                f.write_str("operations in flight may hide suitable memory, try again")
            }
            AllocError::NotFree(range) => write!(f, "{range} is not free"),
            AllocError::Bad(BadRequest::Empty) => f.write_str("a request for 0 frames"),
            AllocError::Bad(BadRequest::Alignment { frames }) => {
                write!(f, "an alignment of {frames} frames is not a power of two")
            }
            AllocError::Bad(BadRequest::TooLong { frames }) => {
                write!(f, "{frames} frames, or the alignment, is more than a machine can have")
            }
            AllocError::Bad(BadRequest::NotSingle { frames }) => {
                write!(f, "a request for {frames} frames in a call that allocates single frames")
            }
            AllocError::Bad(BadRequest::Place(at)) => {
                write!(
                    f,
                    "the place {at} contradicts the alignment, the bound or the address limit"
                )
            }
        }
    }
}

impl core::error::Error for AllocError {}
