//! All store instructions write the same bytes and none around them.
#![allow(clippy::cast_possible_truncation, reason = "patterns of bytes")]

use hotmem_stream::{Stores, stream};
use proptest::prelude::*;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

const GUARD: usize = 128;
const BUFFER_BYTES: usize = 4096;

fn all() -> impl Iterator<Item = Stores> + Clone {
    // SAFETY: user space may change vector registers.
    unsafe { Stores::all() }
}

/// A buffer that is aligned to a cache line and filled with a pattern.
#[repr(align(64))]
#[derive(Clone, PartialEq, Debug)]
struct Buffer([u8; BUFFER_BYTES]);

impl Buffer {
    fn new() -> Box<Buffer> {
        const PATTERN: Buffer = {
            let (mut bytes, mut i) = ([0; BUFFER_BYTES], 0);
            while i < BUFFER_BYTES {
                bytes[i] = (i * 7) as u8 ^ 0xa5;
                i += 1;
            }
            Buffer(bytes)
        };
        static BUFFER_WITH_PATTERN: Buffer = PATTERN;
        Box::new(BUFFER_WITH_PATTERN.clone())
    }
}

/// Returns the buffer after a stream has copied `src` to byte `at` of it.
fn copied(stores: Stores, at: usize, src: &[u8]) -> Box<Buffer> {
    let mut room = Buffer::new();
    let dst = &mut room.0[at..at + src.len()];
    stream(stores, move |stream| stream.copy(dst, src));
    room
}

#[test]
fn copies_of_every_short_length_to_every_alignment() {
    let (lengths, places) = if cfg!(miri) { (63..66, 9) } else { (0..200, 64) };
    let source: Vec<u8> = (0..400).map(|i| (i * 13 + 1) as u8).collect();
    for len in lengths {
        for at in GUARD..GUARD + places {
            // Sources at all places within a word.
            let src = &source[at % 9..][..len];
            let mut expected = Buffer::new();
            expected.0[at..at + len].copy_from_slice(src);
            for stores in all() {
                assert!(copied(stores, at, src) == expected, "{stores:?}: {len} bytes at {at}");
            }
        }
    }
}

/// Returns the buffer after a stream has filled records from word `at` on.
fn filled<const WORDS: usize>(
    stores: Stores,
    at: usize,
    count: usize,
    first: &[u64; WORDS],
    step: &[u64; WORDS],
) -> Box<Buffer> {
    let mut room = Buffer::new();
    let start = room.0[at * 8..].as_mut_ptr();
    assert!(at * 8 + count * WORDS * 8 <= BUFFER_BYTES && start.cast::<u64>().is_aligned());
    // SAFETY: `count` records of `WORDS` words lie within the buffer, aligned to words.
    let dst =
        unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<[u64; WORDS]>>(), count) };
    stream(stores, move |stream| stream.fill(dst, first, step));
    room
}

fn fills_agree<const WORDS: usize>(at: usize, count: usize, words: &[(u64, u64)]) {
    let first: [u64; WORDS] = std::array::from_fn(|i| words[i].0);
    let step: [u64; WORDS] = std::array::from_fn(|i| words[i].1);
    let count = (BUFFER_BYTES / 8 - at).checked_div(WORDS).map_or(count, |room| count.min(room));
    let mut expected = Buffer::new();
    for record in 0..count {
        for word in 0..WORDS {
            let value = first[word].wrapping_add(step[word].wrapping_mul(record as u64));
            let start = (at + record * WORDS + word) * 8;
            expected.0[start..start + 8].copy_from_slice(&value.to_ne_bytes());
        }
    }
    for stores in all() {
        let seen = filled(stores, at, count, &first, &step);
        assert!(seen == expected, "{stores:?}: {count} records of {WORDS} words at word {at}");
    }
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 1 } else { 256 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn copies_of_any_length_to_any_alignment(
        at in 0..2 * GUARD,
        src in prop::collection::vec(any::<u8>(), 0..BUFFER_BYTES - 2 * GUARD),
    ) {
        let mut expected = Buffer::new();
        expected.0[at..at + src.len()].copy_from_slice(&src);
        for stores in all() {
            prop_assert!(copied(stores, at, &src) == expected, "{:?}", stores);
        }
    }

    #[test]
    fn fills_of_any_size_and_place(
        at in 0..40_usize,
        count in 0..60_usize,
        words in prop::collection::vec((any::<u64>(), prop_oneof![Just(0), any::<u64>()]), 24),
    ) {
        fills_agree::<0>(at, count, &words);
        fills_agree::<1>(at, count, &words);
        fills_agree::<2>(at, count, &words);
        fills_agree::<3>(at, count, &words);
        fills_agree::<4>(at, count, &words);
        fills_agree::<7>(at, count, &words);
        fills_agree::<8>(at, count, &words);
        fills_agree::<9>(at, count, &words);
        fills_agree::<16>(at, count, &words);
        fills_agree::<24>(at, count, &words);
    }
}

#[test]
fn fills_with_templates_that_only_repeat() {
    let words: Vec<_> = (0..24).map(|i| (i * 0x0101, 0)).collect();
    for at in if cfg!(miri) { 7..9 } else { 0..16 } {
        fills_agree::<4>(at, 33, &words);
        fills_agree::<8>(at, 33, &words);
        fills_agree::<16>(at, 17, &words);
    }
}

#[test]
fn fills_with_templates_in_which_one_word_changes() {
    for patched in if cfg!(miri) { 3..5 } else { 0..24 } {
        let words: Vec<_> = (0..24).map(|i| (i * 0x0101, u64::from(i == patched) * 7)).collect();
        for at in [0, 1, 8] {
            fills_agree::<4>(at, 33, &words);
            fills_agree::<8>(at, 33, &words);
            fills_agree::<24>(at, 17, &words);
        }
    }
}

/// A word that one thread streams and publishes, and that another thread reads.
struct Handover {
    word: Line<UnsafeCell<u64>>,
    written: Line<AtomicU64>,
    read: Line<AtomicU64>,
}

/// A value with a pair of cache lines of its own, because the processor fetches lines in pairs.
#[repr(align(128))]
struct Line<T>(T);

// SAFETY: the writer owns the word until it sets `written`, then the reader owns it until it sets
// `read`.
unsafe impl Sync for Handover {}

impl Handover {
    fn write(&self, turn: u64, stores: Stores) {
        await_turn(&self.read.0, turn - 1);
        // SAFETY: the reader waits for `written`.
        let word = unsafe { &mut *self.word.0.get().cast::<[u8; 8]>() };
        stream(stores, move |stream| stream.copy(word, &turn.to_ne_bytes()));
        self.written.0.store(turn, Release);
    }

    fn read(&self, turn: u64) -> u64 {
        await_turn(&self.written.0, turn);
        // SAFETY: the writer waits for `read`.
        let word = unsafe { *self.word.0.get() };
        self.read.0.store(turn, Release);
        word
    }
}

/// A word does not fill a line. Without the drain it would stay in the CPU's buffer for a while,
/// and later stores would become visible before it.
#[test]
fn a_drained_word_is_visible_before_later_stores() {
    let turns = 1..=if cfg!(miri) { 10 } else { 2000 };
    for stores in all() {
        let told = Handover { word: Line(0.into()), written: Line(0.into()), read: Line(0.into()) };
        let stale = std::thread::scope(|scope| {
            let reader =
                scope.spawn(|| turns.clone().filter(|&turn| told.read(turn) != turn).count());
            turns.clone().for_each(|turn| told.write(turn, stores));
            reader.join().unwrap()
        });
        assert_eq!(stale, 0, "{stores:?}");
    }
}

fn await_turn(counter: &AtomicU64, turn: u64) {
    let mut waited = 0_u32;
    while counter.load(Acquire) < turn {
        waited += 1;
        if waited.is_multiple_of(1000) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

#[test]
fn a_body_that_panics_is_drained_too() {
    for stores in all() {
        let mut bytes = [0_u8; 64];
        let dst = &mut bytes;
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stream(stores, move |stream| {
                stream.copy(dst, &[9; 64]);
                std::panic::resume_unwind(Box::new(()));
            });
        }));
        assert!(unwound.is_err());
        assert_eq!(bytes, [9; 64]);
    }
}

#[test]
#[should_panic(expected = "differ in length")]
fn lengths_that_differ_are_refused() {
    let dst = &mut [0; 8];
    stream(Stores::best(), move |stream| stream.copy(dst, &[0; 16]));
}

#[test]
fn all_stores_are_listed_from_plainest_to_widest() {
    let names: Vec<_> = all().map(Stores::name).collect();
    let known: &[_] = if cfg!(target_arch = "aarch64") {
        &["ordinary", "stnp"]
    } else {
        &["ordinary", "movnti", "avx2", "avx512"]
    };
    assert!(known.starts_with(&names), "{names:?}");
    assert!(!cfg!(target_arch = "aarch64") || cfg!(miri) || names.len() == 2, "{names:?}");
    assert_eq!(all().last(), Some(Stores::best()));
    assert!(all().any(|stores| stores == Stores::GENERAL));
}
