//! Writing descriptors: from what one frame's contains to all of them.
//!
//! Each descriptor is written once, in its final form and in the order of addresses, heads with
//! what their compounds add to them. So nothing has to be drained between a template and fields
//! that would be changed in it later: one drain, before anybody may look, is enough.

use crate::describe::{Describe, Frame, Role};
use crate::kind::{Compound, Kind};
use crate::layout::{MapLayout, ShareError};
use crate::slots::Slots;
use crate::words::Arithmetic;
use core::{fmt, mem::MaybeUninit};
use hotmem_addr::geometry::PAGEBLOCK_FRAMES;
use hotmem_addr::{Bytes, Pfn, PfnRange};
use hotmem_stream::{Stores, Stream, stream};

/// How the frames of a range are described. A plain value: several CPUs may use copies of it for
/// a part of the range each ([`Slots::parts`]).
pub struct Memmap<'a, B> {
    kind: Kind,
    layout: MapLayout,
    stores: Stores,
    by: &'a B,
}

/// Why frames cannot be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DescribeError {
    /// The range begins or ends within a compound.
    NotWholeCompounds {
        /// The range.
        range: PfnRange,
        /// The size of compounds.
        compound: Compound,
    },
    /// Only the slots of another layout's own descriptors are there.
    OtherLayout(PfnRange),
}

impl<'a, B: Describe> Memmap<'a, B> {
    /// Descriptors of memory of this kind, with this many frames to a page, by `by`. Written with
    /// [`Stores::GENERAL`] unless [said otherwise](Self::stores).
    #[must_use]
    pub const fn new(kind: Kind, compound: Compound, by: &'a B) -> Self {
        const { assert!(B::RUN.is_power_of_two(), "a run is a power of two of frames") };
        let layout = MapLayout::each::<B::Descriptor>(compound);
        Memmap { kind, layout, stores: Stores::GENERAL, by }
    }

    /// The same, written with these instructions: [`Stores::best`] or [`Stores::vector`] where
    /// vector registers may be used. [`Stores::ORDINARY`] is the better choice for a map that has
    /// just been cleared, page by page: its lines lie in the caches then, and stores that bypass
    /// them take about twice as long, because those lines must be written first.
    #[must_use]
    pub const fn stores(self, stores: Stores) -> Self {
        Memmap { stores, ..self }
    }

    /// The same, with the tails of all compounds sharing one frame; see [`MapLayout::pages`]. Only
    /// the first frame of each compound's descriptors is written then.
    ///
    /// # Errors
    /// [`ShareError`] if these descriptors cannot.
    pub const fn sharing_tails(self) -> Result<Self, ShareError> {
        match MapLayout::sharing::<B::Descriptor>(self.layout.compound(), B::METADATA_TAILS) {
            Ok(layout) => Ok(Memmap { layout, ..self }),
            Err(error) => Err(error),
        }
    }

    /// Where the descriptors lie.
    #[must_use]
    pub const fn layout(&self) -> &MapLayout {
        &self.layout
    }

    /// Describes the frames of these slots; how many bytes have been written. When it returns,
    /// whatever stores were used, descriptors may be published as after ordinary ones.
    ///
    /// Any context; calls back [`Describe`] alone. Cost: the bytes written, at the memory's speed.
    ///
    /// # Errors
    /// [`DescribeError`] if they are no whole compounds, or were mapped for another layout; nothing
    /// is written then.
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

    /// All pages of the slots, single frames or compounds. Without a stream somebody watches.
    fn pages<'m>(&self, mut slots: Slots<'m, B::Descriptor>, stream: Option<&Stream<'m>>) {
        let (range, compound) = (slots.range(), self.layout.compound());
        if compound == Compound::SINGLE {
            return self.frames(range, &mut slots, stream, Role::Single);
        }
        for page in range.chunks(compound.frames()) {
            self.compound(page, &mut slots, stream);
        }
    }

    /// A head and its tails.
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
            // Without slots of their own, and all the same pageblocks.
            for block in shared.chunks(PAGEBLOCK_FRAMES as u64).filter(|b| starts_pageblock(*b)) {
                self.by.pageblock(block.start(), None);
            }
        }
    }

    /// Frames in the same role and of the same page, or pages by themselves.
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

    /// Frames whose descriptors lie a constant step apart, or else are written one by one.
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

    /// One descriptor, by ordinary stores.
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

    /// What a frame's descriptor contains.
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
    pfns.start().is_aligned(PAGEBLOCK_FRAMES as u64)
}

/// The first `frames` frames, and the rest.
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
