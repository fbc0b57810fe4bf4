//! Counts the transfers when many CPUs free and allocate runs of several orders.

use super::{count, on_each, switch_to, with_instance};
use hotmem::{AllocRequest, PfnRange};
use hotmem_testkit::RawRanges as _;

const CPUS: u32 = 12;
const SECTIONS: u64 = 64;
/// The number of allocations that each CPU holds: about 27 000 frames, a section.
const ALLOCATIONS: usize = 4096;

/// Returns a request for a movable run: 90 % of the requests are for a frame, 9 % for 8 frames, and
/// 1 % for a pageblock.
fn draw(rng: &mut fastrand::Rng) -> AllocRequest {
    let order = match rng.u32(..100) {
        0 => 9,
        1..10 => 3,
        _ => 0,
    };
    AllocRequest::order(order).movable()
}

/// Each CPU frees a random one of its allocations, and makes another. Searches for partly free
/// pageblocks begin at the CPU's own section; if all began at the lowest section, the CPUs would
/// share pageblocks, and 0.96 lines would be transferred for each allocation and its free.
#[test]
fn traffic_of_mixed_orders_transfers_a_line_for_two_allocations_at_most() {
    with_instance(CPUS, SECTIONS, |frames, _| {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut held: Vec<Vec<PfnRange>> = vec![Vec::new(); CPUS as usize];
        for _ in 0..ALLOCATIONS {
            on_each(CPUS, |cpu| held[cpu].push(frames.alloc_range(draw(&mut rng)).unwrap()));
        }
        held.iter_mut().for_each(|held| rng.shuffle(held));
        let mut swap_all = || {
            for index in 0..ALLOCATIONS {
                on_each(CPUS, |cpu| {
                    frames.free_range(held[cpu][index]).unwrap();
                    held[cpu][index] = frames.alloc_range(draw(&mut rng)).unwrap();
                });
            }
        };
        (0..4).for_each(|_| swap_all());
        let allocations = ALLOCATIONS as u64 * u64::from(CPUS);
        let transfers = count("mixed", CPUS, allocations, swap_all).transfers;
        assert!(transfers > 0.0 && transfers <= 0.5, "{transfers}");
        switch_to(0);
    });
}
