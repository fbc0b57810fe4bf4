//! Times the same copy by ordinary stores and by stores that bypass the caches.

use hotmem_stream::{Stores, stream};
use std::time::Instant;

fn main() {
    let source = vec![7; 32 << 20];
    for stores in [Stores::ORDINARY, Stores::GENERAL_REGISTERS, Stores::best()] {
        let mut copy = vec![0; source.len()];
        let destination = &mut copy[..];
        let start = Instant::now();
        // `stream` drains the stores after the closure has returned, before anything reads the copy.
        stream(stores, |stream| stream.copy(destination, &source));
        let seconds = start.elapsed().as_secs_f64();
        println!("{:8} {:.1} GB/s", stores.name(), source.len() as f64 / seconds / 1e9);
        assert_eq!(copy, source);
    }
}

#[test]
fn all_kinds_of_stores_make_the_same_copy() {
    main();
}
