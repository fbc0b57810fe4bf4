use super::*;
use crate::geometry::{BITMAP_GROUP, PAGEBLOCK_FRAMES};
use crate::words::BitmapFrame;
use crate::words::word_bits::{FLAGS, FreedBits};
use core::mem::MaybeUninit;
use core::ops::Range;

/// A frame of bitmaps, in memory of the test.
#[repr(C, align(4096))]
struct Memory(BitmapFrame);

/// Calls `test` with the lasting bitmaps of a section whose first frame has number 0.
fn with_bitmaps(test: impl FnOnce(&Bitmaps)) {
    // SAFETY: any bytes are a valid `BitmapFrame`, and null pointers are valid `Bitmaps`.
    let (mut memory, bitmaps) = unsafe {
        (
            MaybeUninit::<Memory>::zeroed().assume_init(),
            MaybeUninit::<Bitmaps>::zeroed().assume_init(),
        )
    };
    memory.0.clear(Pfn::ZERO);
    assert!(bitmaps.pointer_of(0).install(&raw mut memory.0, false));
    test(&bitmaps);
}

/// Returns the words of the bitmap of pageblock `bit`.
fn words_of(bitmaps: &Bitmaps, bit: usize) -> [WordPtr; BITMAP_WORDS] {
    core::array::from_fn(|index| bitmaps.lasting_word(bit, index).unwrap())
}

fn values_of(words: &[WordPtr; BITMAP_WORDS]) -> [u64; BITMAP_WORDS] {
    words.map(|word| word.get().value())
}

/// Writes a bitmap. Most words have only free frames or none, so that some runs are long.
fn write_at_random(words: &[WordPtr; BITMAP_WORDS], zone: Zone, rng: &mut fastrand::Rng) {
    for word in words {
        let word = word.get();
        let free = match rng.u8(0..16) {
            0..11 => ALL_FREE,
            11..13 => 0,
            13 => mask(rng.usize(0..BITMAP_WORD_BITS)),
            _ => rng.u64(..) & ALL_FREE,
        };
        word.write(free, false);
        match rng.u8(0..64) {
            0 => continue, // stays held
            1 => word.open(if zone == Zone::Kernel { Zone::Movable } else { Zone::Kernel }),
            _ => word.open(zone),
        }
        match rng.u8(0..64) {
            0 => word.isolate(),
            1 => drop(word.poison()),
            2..8 => drop(word.mark_without_runs()),
            _ => {}
        }
    }
    if rng.u8(0..4) == 0 {
        words.iter().for_each(|word| word.get().lend());
    }
}

/// Returns whether a run of `frames` frames may be taken at `start`, by a look at each of its frames.
/// `start` is a number within the pageblock.
fn may_be_taken(
    values: &[u64; BITMAP_WORDS],
    zone: Zone,
    start: usize,
    frames: usize,
    align: usize,
) -> bool {
    let is_offered = |frame: usize| {
        let value = values[frame / BITMAP_WORD_BITS];
        let is_free = value >> (frame % BITMAP_WORD_BITS) & 1 == 1;
        is_free && value & FLAGS == 0 && FreedBits::new(value, 0).unwrap().zone() == zone
    };
    start.is_multiple_of(align)
        && start + frames <= PAGEBLOCK_FRAMES
        && (start..start + frames).all(is_offered)
}

/// Returns the bits of word `index` that stand for frames of `run`.
fn bits_of_word(run: &Range<usize>, index: usize) -> u64 {
    let frames = index * BITMAP_WORD_BITS..(index + 1) * BITMAP_WORD_BITS;
    frames
        .zip(0..)
        .filter(|(frame, _)| run.contains(frame))
        .fold(0, |bits, (_, bit)| bits | 1 << bit)
}

#[test]
fn the_lowest_long_run_agrees_with_a_naive_search_and_is_taken_and_freed_alone() {
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut found, mut freed) = (0, 0);
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    for _ in 0..rounds {
        with_bitmaps(|bitmaps| {
            // The words after those of the last bitmap are not part of the frame of bitmaps.
            let bit = rng.choice([0, 1, BITMAP_GROUP - 1]).unwrap() % BITMAP_GROUP;
            let zone = rng.choice(Zone::ALL).unwrap();
            let frames = rng.usize(BITMAP_WORD_BITS + 1..=SMALL_FRAMES);
            let align = 1 << rng.u32(0..=PAGEBLOCK_FRAMES.ilog2());
            let shape = LongShape::new(frames as u64, align as u64).unwrap();
            let words = words_of(bitmaps, bit);
            write_at_random(&words, zone, &mut rng);

            let before = values_of(&words);
            let run = bitmaps.lowest_long_run(bit, zone, shape);
            let mut starts = (0..PAGEBLOCK_FRAMES).step_by(BITMAP_WORD_BITS);
            let may_be_taken = |start: usize| may_be_taken(&before, zone, start, frames, align);
            for (word, start) in words.iter().zip(starts.clone()) {
                let run = LongRun::free_at(*word, zone, shape);
                assert_eq!(run.is_ok(), may_be_taken(start), "{start} {shape:?} {before:x?}");
            }
            let start = starts.find(|&start| may_be_taken(start));
            let pageblock = bit * PAGEBLOCK_FRAMES;
            let expected = start.map(|start| (pageblock + start) as u64);
            assert_eq!(run.map(|run| run.start()), expected, "{shape:?} {before:x?}");
            let (Some(run), Some(start)) = (run, start) else { return };
            found += 1;

            let frames = start..start + frames;
            let first = Pfn::new(run.start()).unwrap();
            assert!(LongRun::allocated_at(run.word(), first, shape).is_none(), "a double free");
            assert_eq!(run.take(zone), Ok(()));
            for (index, (before, after)) in before.iter().zip(values_of(&words)).enumerate() {
                assert_eq!(after, before & !bits_of_word(&frames, index), "{index} {before:x?}");
            }
            if let Some((run, freed_zone)) = LongRun::allocated_at(run.word(), first, shape) {
                assert_eq!(freed_zone, zone);
                assert_eq!(run.free(), Ok(()));
                assert_eq!(values_of(&words), before);
                freed += 1;
            }
        });
    }
    assert!(found * 8 > rounds && freed * 8 > rounds, "{found} found, {freed} freed, {rounds}");
}

#[test]
fn a_long_run_of_which_a_frame_was_taken_meanwhile_is_taken_up_to_its_word() {
    with_bitmaps(|bitmaps| {
        let zone = Zone::Kernel;
        let words = words_of(bitmaps, 0);
        let step = if cfg!(miri) { 45 } else { 1 };
        for frames in (BITMAP_WORD_BITS + 1..=SMALL_FRAMES).step_by(step) {
            let shape = LongShape::new(frames as u64, 1).unwrap();
            for taken in [0, 1, BITMAP_WORD_BITS - 1, BITMAP_WORD_BITS, frames - 1, frames] {
                for word in &words {
                    word.get().write(ALL_FREE, false);
                    word.get().open(zone);
                }
                let run = bitmaps.lowest_long_run(0, zone, shape).unwrap();
                let word = taken / BITMAP_WORD_BITS;
                assert!(words[word].get().take(1 << (taken % BITMAP_WORD_BITS)));
                let before = values_of(&words);
                // The frame after the run may be in its last word, and must not matter.
                let is_missed = taken < frames;
                assert_eq!(run.take(zone), if is_missed { Err(word) } else { Ok(()) }, "{taken}");
                let changed = 0..if is_missed { word * BITMAP_WORD_BITS } else { frames };
                for (index, (before, after)) in before.iter().zip(values_of(&words)).enumerate() {
                    assert_eq!(after, before & !bits_of_word(&changed, index), "{frames} {taken}");
                }
            }
        }
    });
}

#[test]
fn a_shape_says_its_length_and_its_alignment_and_has_an_upper_half() {
    for frames in WORD + 1..=SMALL_FRAMES as u64 {
        for align in (0..=PAGEBLOCK_FRAMES.ilog2()).map(|order| 1 << order) {
            let shape = LongShape::new(frames, align).unwrap();
            let step = 1.max(usize::try_from(align / WORD).unwrap());
            assert_eq!(u64::from(shape.frames()), frames);
            assert_eq!(shape.misaligned_bits(), step - 1, "{frames} {align}");
            assert_ne!(shape.to_bits() >> 32, 0, "{frames} {align}");
        }
    }
    assert_eq!(LongShape::new(WORD, 1), None);
    assert_eq!(LongShape::new(SMALL_FRAMES as u64 + 1, 1), None);
    assert_eq!(LongShape::new(WORD + 1, 0), None);
}
