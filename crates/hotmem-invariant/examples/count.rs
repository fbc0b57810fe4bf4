//! An invariant that does not hold: counted, with its place, where debug assertions are off.

use hotmem_invariant::{Known, first_violation, violated_invariants};

/// The number of the last of some frames, of which the caller says that there are some.
fn last(frames: &[u64]) -> u64 {
    // Of no frames, the first frame does the least harm.
    frames.last().known().copied().unwrap_or(0)
}

fn main() {
    assert_eq!(last(&[7, 8, 9]), 9);
    println!("violated: {}", violated_invariants());
    if cfg!(debug_assertions) {
        println!("with debug assertions the next call would panic: try it with --release");
        return;
    }
    assert_eq!(last(&[]), 0);
    let place = first_violation().expect("there was one");
    println!("violated: {}, first at {}:{}", violated_invariants(), place.file(), place.line());
}

#[test]
fn violations_are_counted() {
    main();
}
