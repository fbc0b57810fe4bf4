//! Makes the requests of all CPUs, and frees memory in the order in which the lifetimes of the
//! requests end.

use super::pageblocks::Pageblocks;
use super::requests::{Request, Requests, in_use};
use crate::bench::{
    frames::{Allocator, Length},
    random::ORDERS,
};
use crate::hosted::ThreadCpus;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use std::{cmp::Reverse, collections::BinaryHeap};

/// Makes requests one after the other, and keeps a constant share of the memory in use.
pub(super) struct RequestPlayer<'a, A> {
    allocator: &'a A,
    requests: Requests,
    frames: u64,
    /// The memory in use, in the order in which it is freed.
    allocated_runs: BinaryHeap<Reverse<AllocatedRun>>,
    used_frames: u64,
    pageblocks: Pageblocks,
    requests_made: u64,
    /// The number of requests of each order of [`ORDERS`].
    requests_by_order: [u64; ORDERS.len()],
    /// The number of these requests that failed.
    failures_by_order: [u64; ORDERS.len()],
}

/// Memory in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct AllocatedRun {
    /// The number of the request before which the memory may be freed. The field is first, so that
    /// values are compared by it.
    free_at_request: u64,
    frame: u64,
    order: u32,
    freed_by: usize,
}

impl<'a, A: Allocator> RequestPlayer<'a, A> {
    /// Makes a player that uses `frames` frames from `first` on.
    pub(super) fn new(allocator: &'a A, first: u64, frames: u64, requests: Requests) -> Self {
        let pageblocks = Pageblocks::new(first, frames);
        RequestPlayer {
            allocator,
            requests,
            frames,
            allocated_runs: BinaryHeap::new(),
            used_frames: 0,
            pageblocks,
            requests_made: 0,
            requests_by_order: [0; ORDERS.len()],
            failures_by_order: [0; ORDERS.len()],
        }
    }

    /// Makes requests until memory must be freed for one, or one fails.
    pub(super) fn fill(&mut self) {
        while self.allocated_runs.len() as u64 == self.requests_made {
            self.step();
        }
    }

    /// Makes one request. Before it, frees memory in the order in which lifetimes end, until the
    /// request fits the share that may be in use.
    pub(super) fn step(&mut self) {
        let Request { order, cpu, freed_by, lifetime } = self.requests.next();
        self.requests_made += 1;
        let nth = ORDERS.iter().position(|&(listed, _)| listed == order).unwrap_or_default();
        self.requests_by_order[nth] += 1;
        while self.used_frames + (1 << order) > in_use(self.frames)
            && let Some(Reverse(old)) = self.allocated_runs.pop()
        {
            ThreadCpus::run_as(old.freed_by);
            self.allocator.free(old.frame, Length::Order(old.order));
            self.pageblocks.free(old.frame, 1 << old.order);
            self.used_frames -= 1 << old.order;
        }
        ThreadCpus::run_as(cpu);
        let Some(frame) = self.allocator.alloc(Length::Order(order)) else {
            self.failures_by_order[nth] += 1;
            return;
        };
        self.pageblocks.take(frame, 1 << order);
        self.used_frames += 1 << order;
        self.allocated_runs.push(Reverse(AllocatedRun {
            free_at_request: self.requests_made + lifetime,
            frame,
            order,
            freed_by,
        }));
    }

    /// Returns the share of free memory that lies in pageblocks without a frame in use, in percent.
    pub(super) fn free_in_whole_pageblocks(&self) -> f64 {
        let frames = self.pageblocks.whole_blocks() * PAGEBLOCK_FRAMES as u64;
        frames as f64 * 100.0 / (self.frames - self.used_frames) as f64
    }

    /// Returns the number of pageblocks without a frame in use.
    pub(super) fn whole_pageblocks(&self) -> u64 {
        self.pageblocks.whole_blocks()
    }

    /// Returns the share of the requests of each order of [`ORDERS`] that failed, in percent.
    pub(super) fn refused_shares(&self) -> [f64; ORDERS.len()] {
        let share = |nth: usize| {
            self.failures_by_order[nth] as f64 * 100.0 / self.requests_by_order[nth].max(1) as f64
        };
        std::array::from_fn(share)
    }
}
