//! Violates an invariant. Without debug assertions the violation is counted, with its location.

use hotmem_invariant::{OrRecordViolation, Violations, violated_invariants};

/// Returns the last frame number. The caller promises that `frames` is not empty.
fn last(frames: &[u64]) -> u64 {
    // If the promise is broken, frame 0 does the least harm.
    frames.last().or_record_violation().copied().unwrap_or(0)
}

fn main() {
    assert_eq!(last(&[7, 8, 9]), 9);
    println!("violations: {}", violated_invariants().count);
    if cfg!(debug_assertions) {
        println!("with debug assertions the next call would panic: run the example with --release");
        return;
    }
    assert_eq!(last(&[]), 0);
    let Violations { count, first } = violated_invariants();
    let place = first.expect("a violation was counted");
    println!("violations: {count}, first at {}:{}", place.file(), place.line());
}

#[test]
fn violations_are_counted() {
    main();
}
