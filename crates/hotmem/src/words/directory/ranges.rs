//! Lists the announced ranges, of which there may be any number. The first 8 lie in the list
//! itself. Each further range takes 64 bytes of a frame that belongs to the list.
//!
//! Only the control path writes the list; any context may read it. A place in the list is used
//! again after its range was withdrawn.
//!
//! Each frame has bounds around its ranges, so that a search reads only the frames in which the range
//! can be. Platforms announce their ranges in ascending order, so that few frames overlap.

use super::install::{NoMemory, PieceSupply, get_or_make};
use super::pieces::DirectoryPiece;
use super::range_entry::Entry;
#[cfg(not(loom))]
use super::walk::PieceMemory;
use crate::addr::{Pfn, PfnRange};
use crate::geometry::PFN_LIMIT;
use crate::outlined::Outlined;
use crate::sync::untracked::{AtomicU64, AtomicUsize};
use crate::sync::{Ordering, PiecePtr, const_unless_loom};

/// The number of ranges that lie in the list itself.
const INLINE_RANGES: usize = if cfg!(loom) { 2 } else { 8 };
/// The number of ranges in a frame.
const RANGES_PER_FRAME: usize = 63;

/// Identifies an announced range until it is withdrawn; after that, another range may get the same
/// index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct RegionIndex(u32);

/// The list of announced ranges.
pub(crate) struct Ranges {
    inline_entries: [Entry; INLINE_RANGES],
    first_frame: PiecePtr<RegionTableFrame>,
    /// The number of places that were made. It never decreases, because a vacant place stays.
    places_made: AtomicUsize,
    /// The number of these places that are vacant.
    vacant_places: AtomicUsize,
    /// The place of the range that the last look-up by frame found, so that look-ups of
    /// neighbouring frames find their range at once.
    last_found: AtomicUsize,
}

/// A frame of the list.
#[repr(C)]
pub(crate) struct RegionTableFrame {
    entries: [Entry; RANGES_PER_FRAME],
    bounds: Bounds,
    next: PiecePtr<RegionTableFrame>,
}

/// Bounds around all ranges that a frame of the list has ever had. Without a range, both numbers are
/// 0.
struct Bounds {
    /// The number of frames from the lowest start to [`PFN_LIMIT`].
    below_limit: AtomicU64,
    /// The highest end.
    end: AtomicU64,
}

impl Bounds {
    #[cfg(loom)]
    const fn empty() -> Bounds {
        Bounds { below_limit: AtomicU64::new(0), end: AtomicU64::new(0) }
    }

    /// Extends the bounds around `range`. Relaxed: a reader that must find the range has seen an
    /// effect of its announcement, or of an addition after it, with Acquire.
    fn include(&self, range: PfnRange) {
        let below_limit = PFN_LIMIT - range.start().number();
        for (bound, value) in [(&self.below_limit, below_limit), (&self.end, range.end().number())]
        {
            bound.store(value.max(bound.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    fn overlap(&self, range: PfnRange) -> bool {
        let start = PFN_LIMIT - self.below_limit.load(Ordering::Relaxed);
        start < range.end().number() && range.start().number() < self.end.load(Ordering::Relaxed)
    }
}

/// What stands in the way of a new range.
pub(crate) enum Neighbour {
    /// This range overlaps the new range.
    Overlaps(PfnRange),
    /// This part of a range shares a section with the new range, and is for another node.
    OfOtherNode(PfnRange),
}

// SAFETY: the type consists of atomics of integers and pointers, which may be all zero.
unsafe impl DirectoryPiece for RegionTableFrame {
    #[cfg(loom)]
    fn zeroed() -> Self {
        RegionTableFrame {
            entries: [const { Entry::unused() }; RANGES_PER_FRAME],
            bounds: Bounds::empty(),
            next: PiecePtr::new(core::ptr::null_mut()),
        }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<RegionTableFrame>() <= 1 << 12);

/// Returns how many frames a list with this many places takes.
#[cfg(not(loom))]
const fn frames_of_list(places: usize) -> u64 {
    places.saturating_sub(INLINE_RANGES).div_ceil(RANGES_PER_FRAME) as u64
}

impl RegionIndex {
    fn number(self) -> usize {
        self.0 as usize
    }
}

impl Ranges {
    const_unless_loom! {
        /// Creates a list without ranges.
        pub(crate) fn new() -> Ranges {
            Ranges {
                inline_entries: [const { Entry::unused() }; INLINE_RANGES],
                first_frame: PiecePtr::new(core::ptr::null_mut()),
                places_made: AtomicUsize::new(0),
                vacant_places: AtomicUsize::new(0),
                last_found: AtomicUsize::new(0),
            }
        }
    }

    /// Adds a range to the list. The range must not be empty.
    ///
    /// Cost: a load for each 63 ranges, or O(ranges) if a place is vacant.
    pub(crate) fn insert(
        &self,
        range: PfnRange,
        node: u32,
        is_boot: bool,
        supply: &mut impl PieceSupply,
    ) -> Result<RegionIndex, NoMemory> {
        let places_made = self.places_made.load(Ordering::Relaxed);
        let vacant_places = self.vacant_places.load(Ordering::Relaxed);
        let vacant = match vacant_places {
            0 => None,
            _ => self.places().find(|(_, entry)| entry.range().is_none()),
        };
        let (index, entry) = match vacant {
            Some(vacant) => {
                self.vacant_places.store(vacant_places - 1, Ordering::Relaxed);
                vacant
            }
            None => self.add_place(places_made, supply)?,
        };
        if let Some(frame) = self.frame_of(index) {
            frame.bounds.include(range);
        }
        entry.set(range, node, is_boot);
        Ok(index)
    }

    /// Removes a range from the list.
    pub(crate) fn withdraw(&self, index: RegionIndex) {
        if let Some(entry) = self.get(index).filter(|entry| entry.range().is_some()) {
            entry.set_vacant();
            let vacant_places = self.vacant_places.load(Ordering::Relaxed) + 1;
            self.vacant_places.store(vacant_places, Ordering::Relaxed);
        }
    }

    /// Returns how many more frames the list will take if this many ranges are added.
    #[cfg(not(loom))]
    pub(crate) fn frames_for(&self, more: usize) -> u64 {
        let places_made = self.places_made.load(Ordering::Relaxed);
        let vacant = self.vacant_places.load(Ordering::Relaxed);
        let places_needed = places_made + more.saturating_sub(vacant);
        frames_of_list(places_needed) - frames_of_list(places_made)
    }

    /// Iterates over all frames of the list, as pieces.
    #[cfg(not(loom))]
    pub(crate) fn walk(&self) -> impl Iterator<Item = PieceMemory> {
        let pointers =
            core::iter::once(&self.first_frame).chain(self.frames().map(|frame| &frame.next));
        pointers.filter_map(|pointer| PieceMemory::of_pointer(pointer, PfnRange::EMPTY))
    }

    /// Iterates over the frames of the list.
    fn frames(&self) -> impl Iterator<Item = &RegionTableFrame> {
        // SAFETY: null, or a piece that stays for as long as this list exists. Acquire pairs with
        // the Release of `get_or_make`.
        let first = unsafe { self.first_frame.load(Ordering::Acquire).as_ref() };
        core::iter::successors(first, |frame| {
            // SAFETY: as for `first`.
            unsafe { frame.next.load(Ordering::Acquire).as_ref() }
        })
    }

    /// Adds place number `place`, after the last place.
    fn add_place(
        &self,
        place: usize,
        supply: &mut impl PieceSupply,
    ) -> Result<(RegionIndex, &Entry), NoMemory> {
        let index = RegionIndex(u32::try_from(place).map_err(|_| NoMemory)?);
        let entry = match place.checked_sub(INLINE_RANGES) {
            None => &self.inline_entries[place],
            Some(index_in_frames) => {
                let mut frame: &RegionTableFrame = get_or_make(&self.first_frame, supply)?;
                for _ in 0..index_in_frames / RANGES_PER_FRAME {
                    frame = get_or_make(&frame.next, supply)?;
                }
                &frame.entries[index_in_frames % RANGES_PER_FRAME]
            }
        };
        // Release: a reader that finds the new number finds the frame of the new place.
        self.places_made.store(place + 1, Ordering::Release);
        Ok((index, entry))
    }

    /// Iterates over all places, vacant or not.
    fn places(&self) -> impl Iterator<Item = (RegionIndex, &Entry)> {
        let entries =
            self.inline_entries.iter().chain(self.frames().flat_map(|frame| &frame.entries));
        (0..).map(RegionIndex).zip(entries).take(self.places_made.load(Ordering::Acquire))
    }

    /// Iterates over the announced ranges.
    #[inline(never)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RegionIndex, &Entry, PfnRange)> {
        Outlined(self.places().filter_map(|(index, entry)| Some((index, entry, entry.range()?))))
    }

    /// Returns the entry with this index. Cost: a load for each 63 ranges before it.
    pub(crate) fn get(&self, index: RegionIndex) -> Option<&Entry> {
        let number = index.number();
        if number >= self.places_made.load(Ordering::Acquire) {
            return None;
        }
        let Some(index_in_frames) = number.checked_sub(INLINE_RANGES) else {
            return self.inline_entries.get(number);
        };
        self.frame_of(index)?.entries.get(index_in_frames % RANGES_PER_FRAME)
    }

    /// Returns the frame that an entry lies in, or `None` if it lies in the list itself.
    fn frame_of(&self, index: RegionIndex) -> Option<&RegionTableFrame> {
        self.frames().nth(index.number().checked_sub(INLINE_RANGES)? / RANGES_PER_FRAME)
    }

    /// Iterates over the announced ranges that overlap `range`, which is not empty. Reads the ranges
    /// that lie in the list itself, or in a frame of the list whose bounds overlap `range`.
    fn iter_overlapping(
        &self,
        range: PfnRange,
    ) -> impl Iterator<Item = (RegionIndex, &Entry, PfnRange)> {
        let frames = self.frames().enumerate();
        let near = frames.filter(move |(_, frame)| frame.bounds.overlap(range));
        let in_frames = near.flat_map(|(n, frame)| {
            let first = INLINE_RANGES + n * RANGES_PER_FRAME;
            frame.entries.iter().enumerate().map(move |(n, entry)| (first + n, entry))
        });
        let entries = self.inline_entries.iter().enumerate().chain(in_frames);
        Outlined(entries.filter_map(move |(place, entry)| {
            let range = entry.range_overlapping(range)?;
            Some((RegionIndex(u32::try_from(place).ok()?), entry, range))
        }))
    }

    /// Returns the announced range that contains a frame. Cost: O(1) if the last call found the same
    /// range, otherwise a load for each 63 ranges and O(ranges near the frame).
    pub(crate) fn containing(&self, pfn: Pfn) -> Option<(RegionIndex, &Entry, PfnRange)> {
        let last = u32::try_from(self.last_found.load(Ordering::Relaxed)).ok().map(RegionIndex);
        let last_match = last.and_then(|index| {
            let entry = self.get(index)?;
            Some((index, entry, entry.range().filter(|range| range.contains(pfn))?))
        });
        last_match.or_else(|| {
            let frame = PfnRange::with_len(pfn, 1)?;
            let found = self.iter_overlapping(frame).next()?;
            self.last_found.store(found.0.number(), Ordering::Relaxed);
            Some(found)
        })
    }

    /// Returns an announced range that overlaps `range`. Cost: a load for each 63 ranges, and O(ranges
    /// near `range`).
    pub(crate) fn overlapping(&self, range: PfnRange) -> Option<PfnRange> {
        self.iter_overlapping(range).map(|(_, _, other)| other).next()
    }

    /// Returns a range of the list that overlaps `range`. If there is none, returns the first part of
    /// `around` that belongs to a range for another node than `node` whose nodes do not vary. `around`
    /// covers `range`. Cost: as for [`overlapping`](Self::overlapping).
    pub(crate) fn neighbour(
        &self,
        range: PfnRange,
        around: PfnRange,
        node: u32,
    ) -> Option<Neighbour> {
        let mut of_other_node: Option<PfnRange> = None;
        for (_, entry, other) in self.iter_overlapping(around) {
            if other.overlaps(range) {
                return Some(Neighbour::Overlaps(other));
            }
            if entry.node() != node && !entry.nodes_vary() {
                let part = other.intersection(around);
                let first = of_other_node.get_or_insert(part);
                if part.start() < first.start() {
                    *first = part;
                }
            }
        }
        of_other_node.map(Neighbour::OfOtherNode)
    }
}
