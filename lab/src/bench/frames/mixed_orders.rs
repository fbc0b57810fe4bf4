//! Allocates and frees runs of several orders.

use super::allocator::{ThreadState, alloc_until_some};
use super::length::Length;
use crate::bench::random::{ORDERS as ORDER_SHARES, Random};

/// The number of allocations that a thread holds.
const HELD_ALLOCATIONS: usize = 1 << 14;
/// The number of random orders, which are drawn before the measurement and requested repeatedly.
const ORDERS: usize = 1 << 16;

/// Returns the expected number of frames that a thread holds.
pub(super) fn frames_held() -> u64 {
    let percent = ORDER_SHARES.iter().map(|&(order, share)| share << order).sum::<u64>();
    HELD_ALLOCATIONS as u64 * percent / 100
}

/// The allocations of several orders that a thread holds, and the orders that it requests.
pub(super) struct MixedOrders {
    /// The first frame and the order of each allocation.
    allocations: Vec<(u64, u32)>,
    orders: Vec<u32>,
    /// The index of the allocation that is freed next.
    next_freed: usize,
    /// The index of the order that is allocated next.
    next_order: usize,
}

impl MixedOrders {
    pub(super) fn new() -> MixedOrders {
        MixedOrders { allocations: Vec::new(), orders: Vec::new(), next_freed: 0, next_order: 0 }
    }

    /// Draws the orders, and allocates the allocations to hold.
    pub(super) fn prepare(&mut self, thread_state: &mut impl ThreadState) {
        let mut random = Random::new();
        self.orders.extend((0..ORDERS).map(|_| random.order()));
        let allocate = |_| {
            let order = self.orders[random.index_below(ORDERS)];
            (alloc_until_some(|| thread_state.alloc(Length::Order(order))), order)
        };
        self.allocations.extend((0..HELD_ALLOCATIONS).map(allocate));
        // The measured loop goes through the shuffled list in order. For the allocator this is as
        // random as random picks.
        random.shuffle(&mut self.allocations);
    }

    /// Frees one run and allocates one, `operations` times.
    #[inline]
    pub(super) fn run(&mut self, thread_state: &mut impl ThreadState, operations: u64) {
        let (mut next_freed, mut next_order) = (self.next_freed, self.next_order);
        for _ in 0..operations {
            let (frame, order) = self.allocations[next_freed];
            thread_state.free(frame, Length::Order(order));
            let order = self.orders[next_order];
            self.allocations[next_freed] =
                (alloc_until_some(|| thread_state.alloc(Length::Order(order))), order);
            next_freed = (next_freed + 1) % HELD_ALLOCATIONS;
            next_order = (next_order + 1) % ORDERS;
        }
        (self.next_freed, self.next_order) = (next_freed, next_order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// An allocator that never reuses a frame.
    #[derive(Default)]
    struct BumpAllocator {
        next_frame: u64,
        used_runs: BTreeSet<(u64, u32)>,
        freed_runs: u64,
    }

    impl ThreadState for BumpAllocator {
        fn alloc(&mut self, length: Length) -> Option<u64> {
            self.next_frame += length.frames();
            self.used_runs.insert((self.next_frame, length.order()));
            Some(self.next_frame)
        }

        fn free(&mut self, frame: u64, length: Length) {
            assert!(self.used_runs.remove(&(frame, length.order())), "{frame} is not held");
            self.freed_runs += 1;
        }
    }

    #[test]
    fn each_run_is_freed_with_the_order_of_its_allocation() {
        let (mut bump, mut mixed) = (BumpAllocator::default(), MixedOrders::new());
        mixed.prepare(&mut bump);
        mixed.run(&mut bump, 3 * HELD_ALLOCATIONS as u64);
        mixed.run(&mut bump, 5);
        assert_eq!(
            (bump.used_runs.len(), bump.freed_runs),
            (HELD_ALLOCATIONS, 3 * HELD_ALLOCATIONS as u64 + 5)
        );
        let large = bump.used_runs.iter().filter(|(_, order)| *order == 9).count();
        assert!(
            (HELD_ALLOCATIONS / 200..HELD_ALLOCATIONS / 50).contains(&large),
            "{large} of {HELD_ALLOCATIONS}"
        );
    }
}
