//! Writes the descriptors of many frames from the definition of one.
//!
//! Each descriptor is written once, in its final form and in the order of addresses. No field of a
//! copied template is changed later, so one drain, before the descriptors are published, is enough.

use crate::describe::{Describe, Frame, Role};
use crate::kind::{Compound, Kind};
use crate::layout::{MapLayout, ShareError};
use crate::slots::Slots;
use crate::words::Arithmetic;
use core::{fmt, mem::MaybeUninit};
use hotmem_addr::geometry::PAGEBLOCK_FRAMES;
use hotmem_addr::{Bytes, Pfn, PfnRange};
use hotmem_stream::{Stores, Stream, stream};

/// Describes the frames of ranges. It is a plain value: several CPUs may use copies of it for one
/// part of a range each ([`Slots::parts`]).
pub struct Memmap<'a, B> {
    kind: Kind,
    layout: MapLayout,
    stores: Stores,
    by: &'a B,
}

/// The reason why frames cannot be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DescribeError {
    /// The range begins or ends within a compound.
    NotWholeCompounds {
        /// The range.
        range: PfnRange,
        /// The size of compounds.
        compound: Compound,
    },
    /// The slots are mapped for another layout.
    OtherLayout(PfnRange),
}

impl<'a, B: Describe> Memmap<'a, B> {
    /// Describes memory of this kind with this many frames to a page, as `by` defines. The stores
    /// are [`Stores::GENERAL`] unless [changed](Self::stores).
    #[must_use]
    pub const fn new(kind: Kind, compound: Compound, by: &'a B) -> Self {
        const { assert!(B::RUN.is_power_of_two(), "a run is a power of two of frames") };
        let layout = MapLayout::each::<B::Descriptor>(compound);
        Memmap { kind, layout, stores: Stores::GENERAL, by }
    }

    /// Chooses the store instructions: [`Stores::best`] or [`Stores::vector`] where vector
    /// registers may be used. [`Stores::ORDINARY`] is the better choice for a map that has just
    /// been cleared page by page, because its lines are then in the caches. Stores that bypass the
    /// caches take about twice as long there, since the cached lines must be written back first.
    #[must_use]
    pub const fn stores(self, stores: Stores) -> Self {
        Memmap { stores, ..self }
    }

    /// Makes the tails of all compounds share one frame; see [`MapLayout::pages`]. Only the first
    /// frame of each compound's descriptors is then written.
    ///
    /// # Errors
    /// [`ShareError`] if these descriptors cannot share a frame.
    pub const fn sharing_tails(self) -> Result<Self, ShareError> {
        match MapLayout::sharing::<B::Descriptor>(self.layout.compound(), B::METADATA_TAILS) {
            Ok(layout) => Ok(Memmap { layout, ..self }),
            Err(error) => Err(error),
        }
    }

    /// Returns the layout of the descriptors.
    #[must_use]
    pub const fn layout(&self) -> &MapLayout {
        &self.layout
    }

    /// Describes the frames of these slots, and returns how many bytes it wrote. Afterwards the
    /// descriptors may be published as if ordinary stores had written them.
    ///
    /// Context: any. It calls only [`Describe`]. Cost: proportional to the bytes written, at the
    /// memory's speed.
    ///
    /// # Errors
    /// [`DescribeError`] if the frames are not whole compounds, or if the slots are mapped for
    /// another layout. Nothing is then written.
    pub fn describe(&self, slots: Slots<'_, B::Descriptor>) -> Result<Bytes, DescribeError> {
        let (range, compound) = (slots.range(), self.layout.compound());
        if !range.is_aligned(compound.frames()) {
            return Err(DescribeError::NotWholeCompounds { range, compound });
        }
        if !slots.suits(&self.layout) {
            return Err(DescribeError::OtherLayout(range));
        }
        if self.by.traced() {
            self.pages(slots, None);
        } else {
            stream(self.stores, |stream| self.pages(slots, Some(stream)));
        }
        let compounds = range.frames() >> compound.order();
        let descriptors = compounds * self.layout.written_of_compound();
        Ok(Bytes(descriptors * size_of::<B::Descriptor>() as u64))
    }

    /// Fills a frame with the tails that compounds [share](Self::sharing_tails).
    pub fn describe_shared_tails(&self, frame: &mut [MaybeUninit<B::Descriptor>]) {
        let words = self.words(Role::SharedTail { compound: self.layout.compound() });
        for slot in frame {
            if self.by.traced() {
                self.by.write(slot, &words);
            } else {
                words.write(slot);
            }
        }
    }

    /// Writes all pages of the slots, single frames or compounds. `stream` is `None` if writes are
    /// traced.
    fn pages<'m>(&self, mut slots: Slots<'m, B::Descriptor>, stream: Option<&Stream<'m>>) {
        let (range, compound) = (slots.range(), self.layout.compound());
        if compound == Compound::SINGLE {
            return self.frames(range, &mut slots, stream, Role::Single);
        }
        for page in range.chunks(compound.frames()) {
            self.compound(page, &mut slots, stream);
        }
    }

    /// Writes a head and its tails.
    #[inline]
    fn compound<'m>(
        &self,
        page: PfnRange,
        slots: &mut Slots<'m, B::Descriptor>,
        stream: Option<&Stream<'m>>,
    ) {
        let (head, compound) = (page.start(), self.layout.compound());
        let tail = |pfn| Role::Tail { pfn, head, compound };
        let (first, tails) = split(page, 1);
        let (own, shared) = split(tails, self.layout.written_of_compound() - 1);
        let (metadata, alike) = split(own, B::METADATA_TAILS);
        self.frames(first, slots, stream, |pfn| Role::Head { pfn, compound });
        for one in metadata.chunks(1) {
            self.frames(one, slots, stream, tail);
        }
        if self.layout.shares_tails() {
            self.frames(alike, slots, stream, |_| Role::SharedTail { compound });
        } else {
            self.frames(alike, slots, stream, tail);
        }
        slots.skip(shared.frames());
        if B::READS_PAGEBLOCKS {
            // These tails have no slots of their own, but their pageblocks are reported all the
            // same.
            for block in shared.chunks(PAGEBLOCK_FRAMES as u64).filter(|b| starts_pageblock(*b)) {
                self.by.pageblock(block.start(), None);
            }
        }
    }

    /// Writes frames in the same role and of the same compound, or single frames.
    #[inline(always)]
    fn frames<'m>(
        &self,
        pfns: PfnRange,
        slots: &mut Slots<'m, B::Descriptor>,
        stream: Option<&Stream<'m>>,
        role: impl Fn(Pfn) -> Role + Copy,
    ) {
        for run in pfns.chunks(B::RUN) {
            if !B::READS_PAGEBLOCKS {
                self.run(run, slots.take(run.frames()), stream, role);
                continue;
            }
            for block in run.chunks(PAGEBLOCK_FRAMES as u64) {
                let (first, rest) = split(block, u64::from(starts_pageblock(block)));
                for slot in slots.take(first.frames()) {
                    if let Some(stream) = stream {
                        stream.expect_stores(slots.ahead(PAGEBLOCK_FRAMES as u64 - 1));
                    }
                    self.one(first.start(), slot, stream.is_none(), role);
                    self.by.pageblock(first.start(), Some(slot));
                }
                self.run(rest, slots.take(rest.frames()), stream, role);
            }
        }
    }

    /// Writes a run of frames: by a constant step if their descriptors have one, otherwise one by
    /// one.
    #[inline(always)]
    fn run<'m>(
        &self,
        pfns: PfnRange,
        slots: &'m mut [MaybeUninit<B::Descriptor>],
        stream: Option<&Stream<'m>>,
        role: impl Fn(Pfn) -> Role,
    ) {
        let nth = |n| self.words(role(split(pfns, n).1.start()));
        let last = match pfns.frames() {
            0 => return,
            frames => frames - 1,
        };
        if let Some(stream) = stream {
            let first = nth(0);
            let step = first.step_to(&nth(last.min(1)));
            if last < 2 || first.after(last, &step).is(&nth(last)) {
                return first.fill(&step, stream, slots);
            }
        }
        for (pfn, slot) in pfns.chunks(1).map(PfnRange::start).zip(slots) {
            self.one(pfn, slot, stream.is_none(), &role);
        }
    }

    /// Writes one descriptor by ordinary stores.
    #[inline]
    fn one(
        &self,
        pfn: Pfn,
        slot: &mut MaybeUninit<B::Descriptor>,
        traced: bool,
        role: impl Fn(Pfn) -> Role,
    ) {
        let words = self.words(role(pfn));
        if traced {
            self.by.write(slot, &words);
        } else {
            words.write(slot);
        }
    }

    /// Returns what a frame's descriptor contains.
    #[inline(always)]
    fn words(&self, role: Role) -> B::Words {
        let refcount = match role {
            Role::Single(_) | Role::Head { .. } => self.kind.refcount(),
            Role::Tail { .. } | Role::SharedTail { .. } => 0,
        };
        self.by.words(&Frame { role, refcount })
    }
}

#[inline(always)]
fn starts_pageblock(pfns: PfnRange) -> bool {
    pfns.start().number().is_multiple_of(PAGEBLOCK_FRAMES as u64)
}

/// Returns the first `frames` frames, and the rest.
#[inline(always)]
fn split(pfns: PfnRange, frames: u64) -> (PfnRange, PfnRange) {
    pfns.split_at(pfns.start().checked_add(frames).unwrap_or(Pfn::LIMIT))
}

impl<B> Clone for Memmap<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Memmap<'_, B> {}

impl<B> fmt::Debug for Memmap<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Memmap");
        shown.field("kind", &self.kind).field("layout", &self.layout);
        shown.field("stores", &self.stores).finish_non_exhaustive()
    }
}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescribeError::NotWholeCompounds { range, compound } => {
                write!(f, "{range} does not consist of whole pages, each a {compound:?}")
            }
            DescribeError::OtherLayout(range) => {
                write!(f, "the slots of {range} were mapped for another layout")
            }
        }
    }
}

impl core::error::Error for DescribeError {}
