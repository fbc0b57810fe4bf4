//! Provides frames for the page tables of a test, and counts flushes.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use hotmem_addr::Pfn;
use hotmem_pgtable::{ENTRIES, Flush, Flusher, Format, Table, Tables, VirtRange};

/// Frames for tables, numbered from 1. Frame 1 is an empty root table. The other frames hold
/// garbage.
pub(crate) struct Arena {
    frames: Vec<Table>,
    next_frame: Cell<u64>,
    /// The number of flushes so far.
    pub(crate) flushes: Cell<u64>,
    /// The range that was published last.
    pub(crate) published: Cell<Option<VirtRange>>,
}

impl Arena {
    /// Makes an arena of this many frames, the root included.
    pub(crate) fn new(frames: usize) -> Arena {
        let table = |word: u64| core::array::from_fn::<_, ENTRIES, _>(|_| AtomicU64::new(word));
        let frames = (0..frames).map(|index| table(if index == 0 { 0 } else { u64::MAX }));
        Arena {
            frames: frames.collect(),
            next_frame: Cell::new(2),
            flushes: Cell::new(0),
            published: Cell::new(None),
        }
    }

    pub(crate) fn root(&self) -> Pfn {
        pfn(1)
    }

    /// Takes the next frame, or returns `None` if all frames are taken.
    pub(crate) fn frame(&self) -> Option<Pfn> {
        let frame = pfn(self.next_frame.replace(self.next_frame.get() + 1));
        self.table(frame).map(|_| frame)
    }

    /// Returns the numbers of all frames that were requested, including numbers beyond the arena.
    pub(crate) fn used_frames(&self) -> Vec<u64> {
        (2..self.next_frame.get()).collect()
    }

    /// Returns whether all entries of the root table are empty, so that nothing is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames[0].iter().all(|word| word.load(Relaxed) == 0)
    }
}

impl Tables for &Arena {
    fn table(&self, frame: Pfn) -> Option<&Table> {
        self.frames.get(usize::try_from(frame.number().checked_sub(1)?).ok()?)
    }
}

/// A flusher of a processor with this format.
pub(crate) struct Processor<'a, F>(pub(crate) &'a Arena, PhantomData<F>);

impl<'a, F> Processor<'a, F> {
    pub(crate) fn new(arena: &'a Arena) -> Self {
        Processor(arena, PhantomData)
    }
}

impl<F> Clone for Processor<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Processor<'_, F> {}

impl<F: Format> Flusher for Processor<'_, F> {
    type Format = F;

    fn flush(&mut self, _: Flush) {
        self.0.flushes.set(self.0.flushes.get() + 1);
    }

    fn publish(&mut self, range: VirtRange) {
        self.0.published.set(Some(range));
    }
}

/// Runs a generic test in each format.
macro_rules! each_format {
    ($check:ident) => {{
        $check::<hotmem_pgtable::X86_64>();
        $check::<hotmem_pgtable::Aarch64>();
        $check::<hotmem_pgtable::Riscv64>();
    }};
}

pub(crate) use each_format;

pub(crate) fn pfn(number: u64) -> Pfn {
    Pfn::new(number).unwrap()
}
