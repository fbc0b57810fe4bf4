//! Tests that all kinds of stores write the same bytes, and that no bytes around them change.
#![allow(clippy::cast_possible_truncation, reason = "the tests truncate numbers to bytes")]

use hotmem_stream::{Stores, stream};
use proptest::prelude::*;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

/// The size of two cache lines in bytes.
const TWO_LINES: usize = 128;
const BUFFER_BYTES: usize = 4096;

fn all_stores() -> impl Iterator<Item = Stores> + Clone {
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

/// Returns the buffer after a stream has copied `src` to byte `start` of it.
fn buffer_after_copy(stores: Stores, start: usize, src: &[u8]) -> Box<Buffer> {
    let mut buffer = Buffer::new();
    let dst = &mut buffer.0[start..start + src.len()];
    stream(stores, move |stream| stream.copy(dst, src));
    buffer
}

#[test]
fn copy_writes_the_same_bytes_for_short_lengths_and_all_alignments() {
    let (lengths, alignments) = if cfg!(miri) { (63..66, 9) } else { (0..200, 64) };
    let source: Vec<u8> = (0..400).map(|i| (i * 13 + 1) as u8).collect();
    for len in lengths {
        for start in TWO_LINES..TWO_LINES + alignments {
            // The source begins at an offset of 0 to 8 bytes, so it has every alignment to a word.
            let src = &source[start % 9..][..len];
            let mut expected = Buffer::new();
            expected.0[start..start + len].copy_from_slice(src);
            for stores in all_stores() {
                assert!(
                    buffer_after_copy(stores, start, src) == expected,
                    "{stores:?}: {len} bytes at {start}"
                );
            }
        }
    }
}

/// Returns the buffer after a stream has filled records from word `start_word` on.
fn buffer_after_fill<const WORDS: usize>(
    stores: Stores,
    start_word: usize,
    count: usize,
    first: &[u64; WORDS],
    step: &[u64; WORDS],
) -> Box<Buffer> {
    let mut buffer = Buffer::new();
    let start = buffer.0[start_word * 8..].as_mut_ptr();
    assert!(start_word * 8 + count * WORDS * 8 <= BUFFER_BYTES && start.cast::<u64>().is_aligned());
    // SAFETY: `count` records of `WORDS` words lie within the buffer, aligned to words.
    let dst =
        unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<[u64; WORDS]>>(), count) };
    stream(stores, move |stream| stream.fill(dst, first, step));
    buffer
}

/// Checks that all kinds of stores fill records as the definition of `fill` says.
fn check_fill<const WORDS: usize>(start_word: usize, count: usize, words: &[(u64, u64)]) {
    let first: [u64; WORDS] = std::array::from_fn(|i| words[i].0);
    let step: [u64; WORDS] = std::array::from_fn(|i| words[i].1);
    let count =
        (BUFFER_BYTES / 8 - start_word).checked_div(WORDS).map_or(count, |max| count.min(max));
    let mut expected = Buffer::new();
    for record in 0..count {
        for word in 0..WORDS {
            let value = first[word].wrapping_add(step[word].wrapping_mul(record as u64));
            let start = (start_word + record * WORDS + word) * 8;
            expected.0[start..start + 8].copy_from_slice(&value.to_ne_bytes());
        }
    }
    for stores in all_stores() {
        let found = buffer_after_fill(stores, start_word, count, &first, &step);
        assert!(
            found == expected,
            "{stores:?}: {count} records of {WORDS} words at word {start_word}"
        );
    }
}

fn config() -> ProptestConfig {
    let cases = if cfg!(miri) { 1 } else { 256 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn copy_writes_the_same_bytes_for_any_length_and_alignment(
        start in 0..2 * TWO_LINES,
        src in prop::collection::vec(any::<u8>(), 0..BUFFER_BYTES - 2 * TWO_LINES),
    ) {
        let mut expected = Buffer::new();
        expected.0[start..start + src.len()].copy_from_slice(&src);
        for stores in all_stores() {
            prop_assert!(buffer_after_copy(stores, start, &src) == expected, "{:?}", stores);
        }
    }

    #[test]
    fn fill_writes_the_same_records_for_any_size_and_alignment(
        start in 0..40_usize,
        count in 0..60_usize,
        words in prop::collection::vec((any::<u64>(), prop_oneof![Just(0), any::<u64>()]), 24),
    ) {
        check_fill::<0>(start, count, &words);
        check_fill::<1>(start, count, &words);
        check_fill::<2>(start, count, &words);
        check_fill::<3>(start, count, &words);
        check_fill::<4>(start, count, &words);
        check_fill::<7>(start, count, &words);
        check_fill::<8>(start, count, &words);
        check_fill::<9>(start, count, &words);
        check_fill::<16>(start, count, &words);
        check_fill::<24>(start, count, &words);
    }
}

#[test]
fn fill_repeats_the_first_record_if_step_is_zero() {
    let words: Vec<_> = (0..24).map(|i| (i * 0x0101, 0)).collect();
    for start in if cfg!(miri) { 7..9 } else { 0..16 } {
        check_fill::<4>(start, 33, &words);
        check_fill::<8>(start, 33, &words);
        check_fill::<16>(start, 17, &words);
    }
}

#[test]
fn fill_changes_one_word_if_one_word_of_step_is_not_zero() {
    for changing in if cfg!(miri) { 3..5 } else { 0..24 } {
        let words: Vec<_> = (0..24).map(|i| (i * 0x0101, u64::from(i == changing) * 7)).collect();
        for start in [0, 1, 8] {
            check_fill::<4>(start, 33, &words);
            check_fill::<8>(start, 33, &words);
            check_fill::<24>(start, 17, &words);
        }
    }
}

/// A word that one thread streams and publishes, and that another thread reads.
struct Handover {
    word: OwnLines<UnsafeCell<u64>>,
    written_turn: OwnLines<AtomicU64>,
    read_turn: OwnLines<AtomicU64>,
}

/// A value with a pair of cache lines of its own, because the processor fetches lines in pairs.
#[repr(align(128))]
struct OwnLines<T>(T);

// SAFETY: the writer owns the word until it sets `written_turn`, then the reader owns it until it sets
// `read_turn`.
unsafe impl Sync for Handover {}

impl Handover {
    fn write(&self, turn: u64, stores: Stores) {
        await_turn(&self.read_turn.0, turn - 1);
        // SAFETY: the reader waits for `written_turn`.
        let word = unsafe { &mut *self.word.0.get().cast::<[u8; 8]>() };
        stream(stores, move |stream| stream.copy(word, &turn.to_ne_bytes()));
        self.written_turn.0.store(turn, Release);
    }

    fn read(&self, turn: u64) -> u64 {
        await_turn(&self.written_turn.0, turn);
        // SAFETY: the writer waits for `read_turn`.
        let word = unsafe { *self.word.0.get() };
        self.read_turn.0.store(turn, Release);
        word
    }
}

/// The streamed word fills only a part of a cache line. Without the drain at the end of the stream, the
/// word would stay in the CPU's write-combining buffer for a while, and the store to `written_turn`
/// would become visible before the word.
#[test]
fn a_drained_word_is_visible_before_later_stores() {
    let turns = 1..=if cfg!(miri) { 10 } else { 2000 };
    for stores in all_stores() {
        let handover = Handover {
            word: OwnLines(0.into()),
            written_turn: OwnLines(0.into()),
            read_turn: OwnLines(0.into()),
        };
        let stale_reads = std::thread::scope(|scope| {
            let reader =
                scope.spawn(|| turns.clone().filter(|&turn| handover.read(turn) != turn).count());
            turns.clone().for_each(|turn| handover.write(turn, stores));
            reader.join().unwrap()
        });
        assert_eq!(stale_reads, 0, "{stores:?}");
    }
}

fn await_turn(counter: &AtomicU64, turn: u64) {
    let mut spins = 0_u32;
    while counter.load(Acquire) < turn {
        spins += 1;
        if spins.is_multiple_of(1000) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

#[test]
fn a_stream_whose_body_panics_is_drained() {
    for stores in all_stores() {
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
fn copy_panics_if_the_lengths_differ() {
    let dst = &mut [0; 8];
    stream(Stores::best(), move |stream| stream.copy(dst, &[0; 16]));
}

#[test]
fn stores_are_listed_from_ordinary_to_widest() {
    let names: Vec<_> = all_stores().map(Stores::name).collect();
    let known: &[_] = if cfg!(target_arch = "aarch64") {
        &["ordinary", "stnp"]
    } else {
        &["ordinary", "movnti", "avx2", "avx512"]
    };
    assert!(known.starts_with(&names), "{names:?}");
    assert!(!cfg!(target_arch = "aarch64") || cfg!(miri) || names.len() == 2, "{names:?}");
    assert_eq!(all_stores().last(), Some(Stores::best()));
    assert!(all_stores().any(|stores| stores == Stores::GENERAL_REGISTERS));
}
