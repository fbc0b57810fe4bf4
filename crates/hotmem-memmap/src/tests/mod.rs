//! Defines a kernel whose descriptors record all arguments, and slots between guard words.

extern crate std;

mod altmap;
mod describe;
mod refusals;
mod shared_tails;

use super::*;
use core::{array, mem::MaybeUninit};
use hotmem_addr::{Pfn, PfnRange, geometry::FRAME_SIZE};
use proptest::prelude::*;
use std::{sync::Mutex, vec, vec::Vec};

/// The contents of memory that was not written.
const UNTOUCHED: u64 = 0x5555_aaaa_5555_aaaa;

/// A kernel with descriptors of `N` words and `META_TAILS` tails with data of the compound. If
/// `READS_BACK` is true, the kernel reads back the first descriptor of each pageblock.
#[derive(Default)]
struct Kernel<const N: usize, const META_TAILS: u64, const READS_BACK: bool> {
    records_writes: bool,
    written_descriptors: Mutex<Vec<[u64; N]>>,
    pageblocks: Mutex<Vec<(Pfn, Option<[u64; N]>)>>,
}

const SECTION: SectionField = SectionField::at(3);

impl<const N: usize, const META_TAILS: u64, const READS_BACK: bool> Describe
    for Kernel<N, META_TAILS, READS_BACK>
{
    type Descriptor = [u64; N];
    type Words = [u64; N];
    const METADATA_TAILS: u64 = META_TAILS;
    const INITIALISES_PAGEBLOCKS: bool = READS_BACK;

    fn words(&self, frame: &Frame) -> [u64; N] {
        let (role, pfn, head, order) = match frame.role {
            Role::Single(pfn) => (0, Some(pfn), pfn, 0),
            Role::Head { pfn, compound } => (1, Some(pfn), pfn, compound.order()),
            Role::Tail { pfn, head, compound } => (2, Some(pfn), head, compound.order()),
            Role::SharedTail { compound } => (3, None, Pfn::ZERO, compound.order()),
        };
        let number = pfn.unwrap_or_default().number();
        let nth = number - head.number();
        let own_data = if role == 2 && nth <= META_TAILS { nth << 40 } else { 0 };
        array::from_fn(|i| match i % 8 {
            0 => pfn.map_or(role, |pfn| SECTION.set(role, pfn)),
            1 => 0x8880_0000_0000 + number * FRAME_SIZE,
            2 => u64::from(frame.refcount) << 32 | u64::from(u32::MAX),
            3 => head.number() | own_data,
            4 => 0xdeaf,
            // The low half is a 32-bit field. Where that field wraps, the step of the word changes.
            5 => number & 0xffff_ffff | 0x77 << 32,
            6 => order.into(),
            _ => 0,
        })
    }

    fn traced(&self) -> bool {
        self.records_writes
    }

    fn write(&self, slot: &mut MaybeUninit<[u64; N]>, words: &[u64; N]) {
        self.written_descriptors.lock().unwrap().push(*words);
        slot.write(*words);
    }

    fn init_pageblock(&self, pfn: Pfn, slot: Option<&MaybeUninit<[u64; N]>>) {
        // SAFETY: the descriptor in `slot` has just been written.
        let read = slot.map(|slot| unsafe { slot.assume_init() });
        self.pageblocks.lock().unwrap().push((pfn, read));
    }
}

/// Computes the expected descriptor of each frame from the documented rules.
fn expected<B: Describe>(
    definition: &B,
    kind: Kind,
    compound: Compound,
    shares: bool,
    range: PfnRange,
) -> Vec<B::Words> {
    let per_frame = FRAME_SIZE / size_of::<B::Descriptor>().max(1) as u64;
    let of_frame = |pfn: Pfn| {
        let head = pfn.align_down(compound.frames());
        let nth = pfn.number() - head.number();
        let role = match nth {
            _ if compound == Compound::SINGLE => Role::Single(pfn),
            0 => Role::Head { pfn, compound },
            _ if shares && nth > B::METADATA_TAILS => Role::SharedTail { compound },
            _ => Role::Tail { pfn, head, compound },
        };
        assert!(per_frame > B::METADATA_TAILS + 1 || !shares);
        let refcount = match (kind, nth) {
            (Kind::Generic | Kind::DeviceDax, 0) => 1,
            _ => 0,
        };
        definition.words(&Frame { role, refcount })
    };
    range.chunks(1).map(|frame| of_frame(frame.start())).collect()
}

fn range(start: u64, frames: u64) -> PfnRange {
    PfnRange::with_len(Pfn::new(start).unwrap(), frames).unwrap()
}

/// Memory for descriptors that begin `after_line` words after a cache line, surrounded by memory
/// that must not be written.
struct GuardedSlots<const N: usize> {
    words: Vec<u64>,
    first_slot: usize,
    frames: usize,
}

impl<const N: usize> GuardedSlots<N> {
    const GUARD_SLOTS: usize = 8;

    fn new(frames: u64, after_line: usize) -> GuardedSlots<N> {
        let frames = usize::try_from(frames).unwrap();
        let words = vec![UNTOUCHED; frames * N + 3 * Self::GUARD_SLOTS + after_line];
        let to_line = words[Self::GUARD_SLOTS..].as_ptr().cast::<u8>().align_offset(64) / 8;
        GuardedSlots { words, first_slot: Self::GUARD_SLOTS + to_line + after_line, frames }
    }

    fn slots(&mut self) -> &mut [MaybeUninit<[u64; N]>] {
        let start = self.words[self.first_slot..].as_mut_ptr().cast();
        // SAFETY: `words` has at least `frames` descriptors of `N` words from `first_slot` on.
        unsafe { core::slice::from_raw_parts_mut(start, self.frames) }
    }

    fn written(&self) -> &[[u64; N]] {
        self.words[self.first_slot..][..self.frames * N].as_chunks().0
    }

    fn is_untouched_around(&self) -> bool {
        let (before, rest) = self.words.split_at(self.first_slot);
        before.iter().chain(&rest[self.frames * N..]).all(|&word| word == UNTOUCHED)
    }
}

fn config() -> ProptestConfig {
    let deep = std::env::var_os("HOTMEM_DEEP").is_some();
    let cases = if cfg!(miri) {
        1
    } else if deep {
        5000
    } else {
        100
    };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
