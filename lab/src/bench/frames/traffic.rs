//! Runs and times the allocations and frees of a case.

use super::access_pattern::AccessPattern;
use super::case::Case;
use super::mixed_orders::MixedOrders;
use super::remote_frees::{self, RemoteRole};
use super::subject::{Allocator, HUGE_PAGE_ORDER, ThreadState, alloc_until_some, index};
use crate::bench::random::Random;
use crate::hosted::ThreadCpus;
use anyhow::{Context, Result, ensure};
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use spin::Barrier;
use std::{hint::black_box, thread, time::Duration};

/// The number of allocations that each thread holds in bulk traffic, if there is enough memory.
const BULK_ALLOCATIONS: u64 = 1 << 18;
/// The number of frames that all threads together hold in random traffic.
const RANDOM_FRAMES: u64 = 1 << 20;
/// Of this many pairs, one is nested in another, as by an interrupt.
const PAIRS_PER_INTERRUPT: u64 = 8;

/// Returns the nanoseconds of CPU time of an operation: allocating and freeing one run.
///
/// `first` is the first frame of the memory. No frame of the memory may be in use.
pub(super) fn measure<A: Allocator>(
    allocator: &A,
    first: u64,
    case: &Case,
    operations: u64,
) -> Result<f64> {
    let held = prepare(allocator, first, case)?;
    let cpus = cpus(usize::from(case.threads))?;
    let barrier = Barrier::new(usize::from(case.threads));
    let barrier = &barrier;
    let rings = remote_frees::rings(usize::from(case.threads));
    let roles = remote_frees::roles(&rings, usize::from(case.threads));
    let times = thread::scope(|scope| {
        let start = |((cpu, held), remote_role)| {
            scope.spawn(move || -> Result<f64> {
                pin(cpu)?;
                // The threads of earlier cases had the same CPU numbers.
                ThreadCpus::run_as(cpu);
                let mut traffic = Traffic {
                    allocator,
                    thread_state: allocator.thread_state(),
                    case,
                    barrier,
                    allocations: held,
                    next_freed: 0,
                    mixed_orders: MixedOrders::new(),
                    remote_role,
                };
                // The length of the warm-up does not depend on `operations`, so the warm-up cancels
                // out in the difference of two runs.
                traffic.warm_up(case.operations() >> 6);
                let (time, operations) = traffic.run(operations);
                Ok(nanoseconds(time) / operations as f64)
            })
        };
        let threads: Vec<_> = cpus.into_iter().zip(held).zip(roles).map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<f64>>| {
            thread.join().expect("a measuring thread panicked")
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(times.iter().sum::<f64>() / times.len() as f64)
}

/// Brings the memory into the initial state of the access pattern. Returns the allocations that
/// each thread holds.
fn prepare<A: Allocator>(allocator: &A, first: u64, case: &Case) -> Result<Vec<Vec<u64>>> {
    let threads = usize::from(case.threads);
    let pageblock = PAGEBLOCK_FRAMES as u64;
    let pageblocks = case.size.0 / FRAME_SIZE / pageblock;
    let mut held = vec![Vec::new(); threads];
    // Allocates all memory except `count` pageblocks, one at a random place in each `interval`
    // pageblocks. Equal distances would put their metadata into a few sets of the caches.
    let leave_free = |count: u64, interval: u64| {
        allocator.allocate_all();
        let mut random = Random::new();
        let pageblocks_to_free = (0..count).map(|i| i * interval + random.below(interval));
        pageblocks_to_free.for_each(|nth| allocator.free(first + nth * pageblock, HUGE_PAGE_ORDER));
    };
    let Some(free_pageblocks) = free_pageblocks(case) else { return Ok(held) };
    let name = case.access;
    ensure!(free_pageblocks <= pageblocks, "{name} traffic needs {free_pageblocks} pageblocks");
    if case.access == AccessPattern::Random {
        leave_free(free_pageblocks, pageblocks / free_pageblocks);
        return Ok(held);
    }
    leave_free(free_pageblocks, 1);
    for _ in 0..free_pageblocks * pageblock {
        let frame = allocator.alloc(0).context("a free frame cannot be allocated")?;
        held[index(frame / pageblock) % threads].push(frame);
    }
    Ok(held)
}

/// Returns the number of pageblocks that [`prepare`] leaves free, or `None` if it leaves all memory
/// free.
pub(super) fn free_pageblocks(case: &Case) -> Option<u64> {
    let (pageblock, threads) = (PAGEBLOCK_FRAMES as u64, u64::from(case.threads));
    Some(match case.access {
        AccessPattern::Pair
        | AccessPattern::Bulk
        | AccessPattern::RemoteFree
        | AccessPattern::Interrupts
        | AccessPattern::Mixed
        | AccessPattern::PairWithoutMovable
        | AccessPattern::PairWithoutMovable64Cpus
        | AccessPattern::PairNear
        | AccessPattern::PairNearAlternating
        | AccessPattern::PairOnly
        | AccessPattern::PairOnlyAlternating
        | AccessPattern::Init
        | AccessPattern::Announce
        | AccessPattern::AnnounceAddOnline => return None,
        AccessPattern::Random => RANDOM_FRAMES / pageblock,
        AccessPattern::PairNeighbours => threads,
        AccessPattern::BulkNeighbours => BULK_ALLOCATIONS / pageblock * threads,
    })
}

/// The state of one thread.
struct Traffic<'a, A: Allocator> {
    allocator: &'a A,
    thread_state: A::ThreadState<'a>,
    case: &'a Case,
    barrier: &'a Barrier,
    allocations: Vec<u64>,
    /// The index of the allocation that random traffic frees next.
    next_freed: usize,
    mixed_orders: MixedOrders,
    /// The role of the thread in remote frees.
    remote_role: RemoteRole<'a>,
}

impl<A: Allocator> Traffic<'_, A> {
    /// Runs allocations until the state of the allocator no longer changes.
    fn warm_up(&mut self, operations: u64) {
        match self.case.access {
            AccessPattern::Random => {
                let held = RANDOM_FRAMES >> self.case.order;
                self.take(self.case.order, held / u64::from(self.case.threads));
                // The measured loop goes through the shuffled list in order. For the allocator this
                // is as random as random picks, and the bench has no cache misses of its own.
                Random::new().shuffle(&mut self.allocations);
            }
            // Keep half of the frames of this thread's pageblock.
            AccessPattern::PairNeighbours => {
                let kept_len = self.allocations.len() / 2;
                self.allocations
                    .drain(kept_len..)
                    .for_each(|frame| self.thread_state.free(frame, 0));
            }
            AccessPattern::Mixed => self.mixed_orders.prepare(&mut self.thread_state),
            _ => {}
        }
        self.run(operations);
    }

    /// Runs about this many operations. Returns their number and the time that they took.
    ///
    /// The orders of a frame and of a huge page are constants, as in a kernel.
    fn run(&mut self, operations: u64) -> (Duration, u64) {
        match self.case.order {
            0 => self.run_order(|| 0, operations),
            HUGE_PAGE_ORDER => self.run_order(|| HUGE_PAGE_ORDER, operations),
            order => self.run_order(move || order, operations),
        }
    }

    /// `order_of_all` is a function of its own for each constant order, because the compiler replaces
    /// several calls with different constants by one with a variable.
    fn run_order(
        &mut self,
        order_of_all: impl Fn() -> u32 + Copy,
        operations: u64,
    ) -> (Duration, u64) {
        match self.case.access {
            AccessPattern::Pair
            | AccessPattern::PairNeighbours
            | AccessPattern::PairWithoutMovable
            | AccessPattern::PairWithoutMovable64Cpus
            | AccessPattern::PairNear
            | AccessPattern::PairNearAlternating
            | AccessPattern::PairOnly
            | AccessPattern::PairOnlyAlternating => {
                let pairs = |traffic: &mut Self| {
                    for _ in 0..operations {
                        let frame = traffic.take_one(order_of_all());
                        traffic.thread_state.free(black_box(frame), order_of_all());
                    }
                };
                (self.time_together(pairs), operations)
            }
            AccessPattern::Random => {
                let swaps = |traffic: &mut Self| {
                    for _ in 0..operations {
                        let nth = traffic.next_freed;
                        traffic.next_freed =
                            if nth == 0 { traffic.allocations.len() } else { nth } - 1;
                        traffic.thread_state.free(traffic.allocations[nth], order_of_all());
                        traffic.allocations[nth] = traffic.take_one(order_of_all());
                    }
                };
                (self.time_together(swaps), operations)
            }
            AccessPattern::Interrupts => (
                self.time_together(|traffic| traffic.run_interrupted(order_of_all(), operations)),
                operations,
            ),
            AccessPattern::RemoteFree => {
                let remote_frees = |traffic: &mut Self| {
                    let Traffic { allocator, thread_state, remote_role, .. } = traffic;
                    remote_role.run(*allocator, thread_state, order_of_all(), operations);
                };
                (self.time_together(remote_frees), operations)
            }
            AccessPattern::Mixed => {
                let swaps = |traffic: &mut Self| {
                    traffic.mixed_orders.run(&mut traffic.thread_state, operations)
                };
                (self.time_together(swaps), operations)
            }
            AccessPattern::Bulk => {
                let runs_in_memory = (self.case.size.0 / FRAME_SIZE) >> order_of_all();
                let count = BULK_ALLOCATIONS.min(runs_in_memory / 2 / u64::from(self.case.threads));
                let rounds = operations.div_ceil(count);
                let round = |_| {
                    self.time_together(|t| t.take(order_of_all(), count))
                        + self.time_together(|t| t.free_all(order_of_all()))
                };
                ((0..rounds).map(round).sum(), rounds * count)
            }
            AccessPattern::BulkNeighbours => {
                let count = self.allocations.len() as u64;
                let rounds = operations.div_ceil(count);
                let round = |_| {
                    self.time_together(|t| t.free_all(order_of_all()))
                        + self.time_together(|t| t.take(order_of_all(), count))
                };
                ((0..rounds).map(round).sum(), rounds * count)
            }
            AccessPattern::Init | AccessPattern::Announce | AccessPattern::AnnounceAddOnline => {
                (Duration::ZERO, 1)
            }
        }
    }

    /// Runs `operations` when all threads have called this function, and returns their CPU time.
    /// Waiting threads spin, because the CPU time would include a wakeup.
    fn time_together(&mut self, operations: impl FnOnce(&mut Self)) -> Duration {
        self.barrier.wait();
        let started = cpu_time();
        operations(self);
        cpu_time() - started
    }

    /// Makes `operations` pairs. In some of them another pair is nested, as by an interrupt between
    /// two calls of the allocator.
    fn run_interrupted(&mut self, order: u32, operations: u64) {
        let mut pairs_left = operations;
        while pairs_left > 0 {
            let frame = self.take_one(order);
            pairs_left -= 1;
            if pairs_left % PAIRS_PER_INTERRUPT == 1 {
                // An interrupt handler has no magazine of its own.
                let nested = alloc_until_some(|| self.allocator.alloc(order));
                self.allocator.free(black_box(nested), order);
                pairs_left -= 1;
            }
            self.thread_state.free(black_box(frame), order);
        }
    }

    #[inline(always)]
    fn take_one(&mut self, order: u32) -> u64 {
        alloc_until_some(|| self.thread_state.alloc(order))
    }

    #[inline(always)]
    fn take(&mut self, order: u32, count: u64) {
        self.thread_state.take(order, count, &mut self.allocations);
    }

    #[inline(always)]
    fn free_all(&mut self, order: u32) {
        self.thread_state.free_all(order, &mut self.allocations);
    }
}

/// Returns the first CPUs that this process may use, one for each thread.
fn cpus(threads: usize) -> Result<Vec<usize>> {
    let mut cpus = allowed_cpus()?;
    cpus.truncate(threads);
    ensure!(
        cpus.len() == threads,
        "{threads} threads need {threads} CPUs, but this process may use {}",
        cpus.len()
    );
    Ok(cpus)
}

/// Returns the CPUs that this process may use.
pub(in crate::bench) fn allowed_cpus() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("reading which CPUs this process may use")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Binds the calling thread to a CPU.
pub(in crate::bench) fn pin(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).with_context(|| format!("binding a thread to CPU {cpu}"))
}

/// Returns the CPU time that the calling thread has used.
pub(in crate::bench) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Converts a time to nanoseconds.
pub(super) fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}
