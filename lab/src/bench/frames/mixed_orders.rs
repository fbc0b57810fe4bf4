//! Allocates and frees runs of several orders.

use super::subject::{ThreadState, until_some};
use crate::bench::random::Random;

/// The number of allocations that a thread holds.
const ALLOCATIONS_HELD: usize = 1 << 14;
/// The number of random orders, which are drawn before the measurement and requested repeatedly.
const ORDERS: usize = 1 << 16;

/// The allocations of several orders that a thread holds, and the orders that it requests.
pub(super) struct MixedOrders {
    allocations: Vec<(u64, u32)>,
    orders: Vec<u32>,
    /// The index of the allocation that is freed next, and that of the order that is allocated
    /// next.
    next_indices: (usize, usize),
}

impl MixedOrders {
    pub(super) fn new() -> MixedOrders {
        MixedOrders { allocations: Vec::new(), orders: Vec::new(), next_indices: (0, 0) }
    }

    /// Draws the orders, and allocates the allocations to hold.
    pub(super) fn prepare(&mut self, thread_state: &mut impl ThreadState) {
        let mut random = Random::new();
        self.orders.extend((0..ORDERS).map(|_| random.order()));
        let allocate = |_| {
            let order = self.orders[random.index_below(ORDERS)];
            (until_some(|| thread_state.alloc(order)), order)
        };
        self.allocations.extend((0..ALLOCATIONS_HELD).map(allocate));
        // The measured loop goes through the shuffled list in order. For the allocator this is as
        // random as random picks.
        random.shuffle(&mut self.allocations);
    }

    /// Frees one run and allocates one, `operations` times.
    #[inline]
    pub(super) fn run(&mut self, thread_state: &mut impl ThreadState, operations: u64) {
        let (mut held_index, mut order_index) = self.next_indices;
        for _ in 0..operations {
            let (frame, order) = self.allocations[held_index];
            thread_state.free(frame, order);
            let order = self.orders[order_index];
            self.allocations[held_index] = (until_some(|| thread_state.alloc(order)), order);
            (held_index, order_index) =
                ((held_index + 1) % ALLOCATIONS_HELD, (order_index + 1) % ORDERS);
        }
        self.next_indices = (held_index, order_index);
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
        fn alloc(&mut self, order: u32) -> Option<u64> {
            self.next_frame += 1 << order;
            self.used_runs.insert((self.next_frame, order));
            Some(self.next_frame)
        }

        fn free(&mut self, frame: u64, order: u32) {
            assert!(self.used_runs.remove(&(frame, order)), "{frame} is not held");
            self.freed_runs += 1;
        }
    }

    #[test]
    fn each_piece_is_freed_with_the_order_of_its_allocation() {
        let (mut bump, mut mixed) = (BumpAllocator::default(), MixedOrders::new());
        mixed.prepare(&mut bump);
        mixed.run(&mut bump, 3 * ALLOCATIONS_HELD as u64);
        mixed.run(&mut bump, 5);
        assert_eq!(
            (bump.used_runs.len(), bump.freed_runs),
            (ALLOCATIONS_HELD, 3 * ALLOCATIONS_HELD as u64 + 5)
        );
        let large = bump.used_runs.iter().filter(|(_, order)| *order == 9).count();
        assert!(
            (ALLOCATIONS_HELD / 200..ALLOCATIONS_HELD / 50).contains(&large),
            "{large} of {ALLOCATIONS_HELD}"
        );
    }
}
