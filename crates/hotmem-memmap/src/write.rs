//! Writes the descriptors of many frames, as the kernel's [`Describe`] defines them.
//!
//! Each descriptor is written once, in its final form and in the order of addresses. No field is
//! changed after its descriptor was written, so one drain of the stores before the descriptors are
//! published is enough.

use crate::describe::{Describe, Frame, Role};
use crate::kind::{Compound, Kind};
use crate::layout::{MapLayout, ShareError};
use crate::slots::Slots;
use crate::words::Arithmetic;
use core::{fmt, mem::MaybeUninit};
use hotmem_addr::geometry::PAGEBLOCK_FRAMES;
use hotmem_addr::{Bytes, Pfn, PfnRange};
use hotmem_stream::{Stores, Stream, stream};

/// Writes the descriptors of ranges of frames. Several CPUs may use copies of one `Memmap`, each for a
/// part of a range ([`Slots::parts`]).
pub struct Memmap<'a, B> {
    kind: Kind,
    layout: MapLayout,
    stores: Stores,
    definition: &'a B,
}

/// The reason why frames cannot be described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DescribeError {
    /// The range begins or ends within a compound.
    NotWholeCompounds {
        /// The range.
        range: PfnRange,
        /// The size of compounds.
        compound: Compound,
    },
    /// The slots are mapped for another layout than that of the `Memmap`.
    OtherLayout(PfnRange),
}

impl<'a, B: Describe> Memmap<'a, B> {
    /// Makes a `Memmap` for memory of this kind, with pages of the size `compound` and descriptors as
    /// `definition` defines them. The stores are [`Stores::GENERAL_REGISTERS`] unless
    /// [`stores`](Self::stores) changes them.
    #[must_use]
    pub const fn new(kind: Kind, compound: Compound, definition: &'a B) -> Self {
        const { assert!(B::RUN_FRAMES.is_power_of_two(), "`RUN_FRAMES` must be a power of two") };
        let layout = MapLayout::unshared::<B::Descriptor>(compound);
        Memmap { kind, layout, stores: Stores::GENERAL_REGISTERS, definition }
    }

    /// Chooses the store instructions. Where vector registers may be used, choose [`Stores::best`] or
    /// [`Stores::vector`]. If the map has just been cleared page by page, choose
    /// [`Stores::ORDINARY`], because the lines of the map are then in the caches. Stores that bypass
    /// the caches would take about twice as long, because the cached lines must be written back first.
    #[must_use]
    pub const fn stores(self, stores: Stores) -> Self {
        Memmap { stores, ..self }
    }

    /// Makes the tails of all compounds share one frame: see [`MapLayout::pages`]. Then only the first
    /// page of each compound's descriptors is written.
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

    /// Writes the descriptors of the frames of these slots, and returns how many bytes were written.
    /// Afterwards the descriptors may be published as if ordinary stores had written them.
    ///
    /// Context: any in which the methods of [`Describe`] may be called. Cost: proportional to the
    /// bytes written, at the memory's speed.
    ///
    /// # Errors
    /// [`DescribeError`] if the frames are not whole compounds, or if the slots are mapped for
    /// another layout. Then nothing is written.
    pub fn describe(&self, slots: Slots<'_, B::Descriptor>) -> Result<Bytes, DescribeError> {
        let (range, compound) = (slots.range(), self.layout.compound());
        if !range.is_aligned(compound.frames()) {
            return Err(DescribeError::NotWholeCompounds { range, compound });
        }
        if !slots.are_mapped_for(&self.layout) {
            return Err(DescribeError::OtherLayout(range));
        }
        if self.definition.traced() {
            self.write_pages(slots, None);
        } else {
            stream(self.stores, |stream| self.write_pages(slots, Some(stream)));
        }
        let compounds = range.frames() >> compound.order();
        let descriptors = compounds * self.layout.written_per_compound();
        Ok(Bytes(descriptors * size_of::<B::Descriptor>() as u64))
    }

    /// Fills `frame` with the descriptor of a tail that compounds [share](Self::sharing_tails).
    pub fn describe_shared_tails(&self, frame: &mut [MaybeUninit<B::Descriptor>]) {
        let words = self.words(Role::SharedTail { compound: self.layout.compound() });
        for slot in frame {
            if self.definition.traced() {
                self.definition.write(slot, &words);
            } else {
                words.write(slot);
            }
        }
    }

    /// Writes the descriptors of all slots. `stream` is `None` if writes are traced.
    fn write_pages<'m>(&self, mut slots: Slots<'m, B::Descriptor>, stream: Option<&Stream<'m>>) {
        let (range, compound) = (slots.range(), self.layout.compound());
        if compound == Compound::SINGLE {
            return self.write_frames(range, &mut slots, stream, Role::Single);
        }
        for page in range.chunks(compound.frames()) {
            self.write_compound(page, &mut slots, stream);
        }
    }

    /// Writes the descriptors of a head and its tails.
    #[inline]
    fn write_compound<'m>(
        &self,
        page: PfnRange,
        slots: &mut Slots<'m, B::Descriptor>,
        stream: Option<&Stream<'m>>,
    ) {
        let (head, compound) = (page.start(), self.layout.compound());
        let tail = |pfn| Role::Tail { pfn, head, compound };
        let (first, tails) = split(page, 1);
        let (written, unwritten) = split(tails, self.layout.written_per_compound() - 1);
        let (metadata_tails, plain_tails) = split(written, B::METADATA_TAILS);
        self.write_frames(first, slots, stream, |pfn| Role::Head { pfn, compound });
        for frame in metadata_tails.chunks(1) {
            self.write_frames(frame, slots, stream, tail);
        }
        if self.layout.shares_tails() {
            self.write_frames(plain_tails, slots, stream, |_| Role::SharedTail { compound });
        } else {
            self.write_frames(plain_tails, slots, stream, tail);
        }
        slots.skip(unwritten.frames());
        if B::INITIALISES_PAGEBLOCKS {
            // Call `init_pageblock` also for pageblocks whose first frame has a shared descriptor.
            for block in unwritten.chunks(PAGEBLOCK_FRAMES as u64).filter(|b| starts_pageblock(*b))
            {
                self.definition.init_pageblock(block.start(), None);
            }
        }
    }

    /// Writes the descriptors of frames that are all in the same role and, except single frames, in
    /// the same compound. In a debug build, four copies of this function in its caller would take
    /// 16 KiB of stack.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write_frames<'m>(
        &self,
        pfns: PfnRange,
        slots: &mut Slots<'m, B::Descriptor>,
        stream: Option<&Stream<'m>>,
        role: impl Fn(Pfn) -> Role + Copy,
    ) {
        for run in pfns.chunks(B::RUN_FRAMES) {
            if !B::INITIALISES_PAGEBLOCKS {
                self.write_run(run, slots.take(run.frames()), stream, role);
                continue;
            }
            for block in run.chunks(PAGEBLOCK_FRAMES as u64) {
                let (first, remaining) = split(block, u64::from(starts_pageblock(block)));
                for slot in slots.take(first.frames()) {
                    if let Some(stream) = stream {
                        stream
                            .prefetch_for_stores(slots.address_after(PAGEBLOCK_FRAMES as u64 - 1));
                    }
                    self.write_frame(first.start(), slot, stream.is_none(), role);
                    self.definition.init_pageblock(first.start(), Some(slot));
                }
                self.write_run(remaining, slots.take(remaining.frames()), stream, role);
            }
        }
    }

    /// Writes the descriptors of a run of frames: through the stream if each differs from the next by
    /// the same step, and one by one otherwise.
    #[inline(always)]
    fn write_run<'m>(
        &self,
        pfns: PfnRange,
        slots: &'m mut [MaybeUninit<B::Descriptor>],
        stream: Option<&Stream<'m>>,
        role: impl Fn(Pfn) -> Role,
    ) {
        let words_of = |n| self.words(role(split(pfns, n).1.start()));
        let last = match pfns.frames() {
            0 => return,
            frames => frames - 1,
        };
        if let Some(stream) = stream {
            let first = words_of(0);
            let step = first.step_to(&words_of(last.min(1)));
            if last < 2 || first.after(last, &step).equals(&words_of(last)) {
                return first.fill(&step, stream, slots);
            }
        }
        for (pfn, slot) in pfns.chunks(1).map(PfnRange::start).zip(slots) {
            self.write_frame(pfn, slot, stream.is_none(), &role);
        }
    }

    /// Writes the descriptor of one frame by ordinary stores.
    #[inline]
    fn write_frame(
        &self,
        pfn: Pfn,
        slot: &mut MaybeUninit<B::Descriptor>,
        traced: bool,
        role: impl Fn(Pfn) -> Role,
    ) {
        let words = self.words(role(pfn));
        if traced {
            self.definition.write(slot, &words);
        } else {
            words.write(slot);
        }
    }

    /// Returns the words of the descriptor of a frame in this role.
    #[inline(always)]
    fn words(&self, role: Role) -> B::Words {
        let refcount = match role {
            Role::Single(_) | Role::Head { .. } => self.kind.refcount(),
            Role::Tail { .. } | Role::SharedTail { .. } => 0,
        };
        self.definition.words(&Frame { role, refcount })
    }
}

#[inline(always)]
fn starts_pageblock(pfns: PfnRange) -> bool {
    pfns.start().number().is_multiple_of(PAGEBLOCK_FRAMES as u64)
}

/// Returns the first `frames` frames of `pfns`, and the other frames.
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
        let mut output = f.debug_struct("Memmap");
        output.field("kind", &self.kind).field("layout", &self.layout);
        output.field("stores", &self.stores).finish_non_exhaustive()
    }
}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescribeError::NotWholeCompounds { range, compound } => {
                write!(
                    f,
                    "{range} does not consist of whole pages, each of which is a {compound:?}"
                )
            }
            DescribeError::OtherLayout(range) => {
                write!(f, "the slots of {range} were mapped for another layout")
            }
        }
    }
}

impl core::error::Error for DescribeError {}
