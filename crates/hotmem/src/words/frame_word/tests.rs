use super::*;
use crate::words::Zone::{Kernel, Movable};

/// Returns an open word of frames of `zone`, of which `free` are free.
fn word(zone: Zone, free: u64) -> FrameWord {
    let word = FrameWord(AtomicU64::new(0));
    word.init(0);
    word.write(free, false);
    word.open(zone);
    word
}

#[test]
fn an_allocation_with_a_wrong_guess_fails_one_time_and_takes_no_frame() {
    let word = word(Movable, 0b0110);
    let last_change = LastChange::new();
    let first = word.take_frame_of(Movable, &last_change).unwrap();
    // Another CPU frees a frame that is lower than the next one that the guess names.
    assert!(word.free(0b0001, || ()).is_some());
    assert_eq!(word.take_frame_of(Movable, &last_change), None);
    assert_eq!(word.bits(), 0b0101);
    assert_eq!(word.take_frame_of(Movable, &last_change), Some(first - 1));
    assert_eq!(word.take_frame_of(Movable, &last_change), Some(first + 1));
    // The guess is that no frame is free. It is wrong after another CPU's free.
    assert_eq!(word.take_frame_of(Movable, &last_change), None);
    assert!(word.free(0b0100, || ()).is_some());
    assert_eq!(word.take_frame_of(Movable, &last_change), Some(first + 1));
}

#[test]
fn a_free_with_a_wrong_guess_fails_one_time_and_changes_nothing() {
    let word = word(Kernel, 0b0111);
    let last_change = LastChange::new();
    let frame = Pfn::new(word.take_frame_of(Kernel, &last_change).unwrap()).unwrap();
    assert!(word.take(0b0010));
    assert!(word.free_one(frame, &last_change).is_none());
    assert_eq!(word.bits(), 0b0100);
    assert!(word.free_one(frame, &last_change).is_some());
    assert_eq!(word.bits(), 0b0101);
    assert!(word.free_one(frame, &last_change).is_none(), "the frame was freed twice");
}

#[test]
fn a_guess_does_not_hide_flags() {
    let word = word(Kernel, 0b0011);
    let last_change = LastChange::new();
    let frame = Pfn::new(word.take_frame_of(Kernel, &last_change).unwrap()).unwrap();
    word.isolate();
    for _ in 0..2 {
        assert_eq!(word.take_frame_of(Kernel, &last_change), None);
    }
    word.release();
    word.poison();
    for _ in 0..2 {
        assert!(word.free_one(frame, &last_change).is_none());
    }
    assert_eq!(word.bits(), 0b0010);
}

#[test]
fn a_word_is_marked_until_a_frame_of_it_is_freed() {
    let word = word(Kernel, 0b1010_0101);
    let last_change = LastChange::new();
    assert!(word.mark_without_runs() && word.is_marked());
    // Allocations ignore the mark, and leave it.
    let frame = Pfn::new(word.take_frame_of(Kernel, &last_change).unwrap()).unwrap();
    assert!(word.take(0b0100) && word.is_marked());
    // The free that needs no look at the mark refuses the word.
    for _ in 0..2 {
        assert!(word.free_one(frame, &last_change).is_none());
    }
    // A compare-exchange may fail without a reason, so the call may come more than once.
    let mut is_called = false;
    assert!(word.free(0b0001, || is_called = true).unwrap().cleared_mark());
    assert!(is_called && !word.is_marked());
    let freed = word.free(0b0010, || panic!("a search has not passed the word"));
    assert!(!freed.unwrap().cleared_mark());
    assert_eq!(word.bits(), 0b1010_0011);
    assert!(!word.mark_without_runs(), "two neighbouring frames are free");
}

#[test]
fn a_held_word_is_not_marked_without_runs() {
    let word = FrameWord(AtomicU64::new(0));
    word.init(0);
    assert!(!word.mark_without_runs());
    word.open(Kernel);
    assert!(word.mark_without_runs());
}

#[test]
fn the_guess_of_a_word_is_not_used_for_another() {
    let (one, other) = (word(Kernel, 0b0011), word(Kernel, 0b1000));
    let last_change = LastChange::new();
    assert!(one.take_frame_of(Kernel, &last_change).is_some());
    assert!(other.take_frame_of(Kernel, &last_change).is_some());
    assert_eq!((one.bits(), other.bits()), (0b0010, 0));
}
