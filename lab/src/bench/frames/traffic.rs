//! Runs and times the allocations and frees of a case.

use super::access::Access;
use super::allocator::{Allocator, ThreadState, alloc_until_some};
use super::case::Case;
use super::length::Length;
use super::mixed_orders::MixedOrders;
use super::prepare::{BULK_ALLOCATIONS, RANDOM_FRAMES, prepare};
use super::remote_frees::{self, RemoteRole};
use super::run::Run;
use super::state::State;
use super::tables::RUN_LENGTHS;
use crate::bench::random::Random;
use crate::bench::valgrind;
use crate::hosted::ThreadCpus;
use anyhow::{Context, Result, ensure};
use hotmem::geometry::FRAME_SIZE;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use spin::Barrier;
use std::{hint::black_box, thread, time::Duration};

/// Of this many pairs, one is nested in another, as by an interrupt.
const PAIRS_PER_INTERRUPT: u64 = 8;

/// Evaluates an expression with a function that returns the length of all allocations. If the length
/// is in the list, the function is one of its own, which returns a constant, as in a kernel that knows
/// the length: the compiler would replace several calls with different constants by one with a
/// variable.
macro_rules! with_length {
    ($of_case:expr, |$name:ident| $traffic:expr, [$($length:expr),* $(,)?]) => {
        match $of_case {
            $(length if length == $length => {
                let $name = || $length;
                $traffic
            })*
            length => {
                let $name = move || length;
                $traffic
            }
        }
    };
}

/// Returns the nanoseconds of CPU time of an operation: allocating and freeing one run.
///
/// `first` is the first frame of the memory. No frame of the memory may be in use.
pub(super) fn measure<A: Allocator>(
    allocator: &A,
    first: u64,
    case: &Case,
    run: Run,
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
                    counts_instructions: false,
                    barrier,
                    allocations: held,
                    next_freed: 0,
                    mixed_orders: MixedOrders::new(),
                    remote_role,
                };
                traffic.warm_up(case.operations() >> 6);
                traffic.counts_instructions = run.counts_instructions;
                let (time, operations) = traffic.run(run.operations);
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

/// The state of one thread.
struct Traffic<'a, A: Allocator> {
    allocator: &'a A,
    thread_state: A::ThreadState<'a>,
    case: &'a Case,
    /// Whether valgrind counts instructions now.
    counts_instructions: bool,
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
        let length = self.case.length;
        match (self.case.access, self.case.state) {
            (_, State::Full) => {
                let held = RANDOM_FRAMES >> length.order();
                self.take(length, held / u64::from(self.case.threads));
                // The measured loop goes through the shuffled list in order. For the allocator this
                // is as random as random picks, and the bench has no cache misses of its own.
                Random::new().shuffle(&mut self.allocations);
            }
            (Access::Bulk, State::Neighbours) => self.free_all(length),
            // Keep half of the frames of this thread's pageblock.
            (_, State::Neighbours) => {
                let kept_len = self.allocations.len() / 2;
                self.allocations
                    .drain(kept_len..)
                    .for_each(|frame| self.thread_state.free(frame, length));
            }
            (Access::Mixed, _) => self.mixed_orders.prepare(&mut self.thread_state),
            _ => {}
        }
        self.run(operations.max(1));
    }

    /// Runs about this many operations. Returns their number and the time that they took.
    fn run(&mut self, operations: u64) -> (Duration, u64) {
        let length = self.case.length;
        let time = match self.case.access {
            Access::Pair if self.counts_each_operation() => {
                with_length!(
                    length,
                    |length_of_all| self.run_pairs(length_of_all, operations, valgrind::end_part),
                    [Length::FRAME]
                )
            }
            // Each length of the table `runs`, as a constant.
            Access::Pair => with_length!(
                length,
                |length_of_all| self.run_pairs(length_of_all, operations, || {}),
                [
                    RUN_LENGTHS[0],
                    RUN_LENGTHS[1],
                    RUN_LENGTHS[2],
                    RUN_LENGTHS[3],
                    RUN_LENGTHS[4],
                    RUN_LENGTHS[5],
                    RUN_LENGTHS[6],
                    RUN_LENGTHS[7],
                    RUN_LENGTHS[8],
                    RUN_LENGTHS[9],
                    RUN_LENGTHS[10],
                    RUN_LENGTHS[11],
                    RUN_LENGTHS[12],
                    RUN_LENGTHS[13],
                    RUN_LENGTHS[14],
                    RUN_LENGTHS[15]
                ]
            ),
            Access::Random if self.counts_each_operation() => {
                with_length!(
                    length,
                    |length_of_all| self.run_random(length_of_all, operations, valgrind::end_part),
                    [Length::FRAME, Length::Order(3)]
                )
            }
            Access::Random => with_length!(
                length,
                |length_of_all| self.run_random(length_of_all, operations, || {}),
                [Length::FRAME, Length::Order(3), Length::HUGE_PAGE]
            ),
            Access::Refused if self.counts_each_operation() => {
                self.run_refused(operations, valgrind::end_part)
            }
            Access::Refused => self.run_refused(operations, || {}),
            Access::Interrupts => {
                with_length!(
                    length,
                    |length_of_all| self.run_interrupted(length_of_all, operations),
                    [Length::FRAME, Length::HUGE_PAGE]
                )
            }
            Access::RemoteFree => {
                with_length!(
                    length,
                    |length_of_all| self.run_remote_frees(length_of_all, operations),
                    [Length::FRAME, Length::HUGE_PAGE]
                )
            }
            Access::Mixed => self.time_together(|traffic| {
                traffic.mixed_orders.run(&mut traffic.thread_state, operations)
            }),
            Access::Bulk => {
                let runs_in_memory = (self.case.size.0 / FRAME_SIZE) >> self.case.length.order();
                let count = BULK_ALLOCATIONS.min(runs_in_memory / 2 / u64::from(self.case.threads));
                let rounds = operations.div_ceil(count);
                let time = with_length!(
                    length,
                    |length_of_all| self.run_bulk(length_of_all, rounds, count),
                    [Length::FRAME, Length::HUGE_PAGE]
                );
                return (time, rounds * count);
            }
            Access::Init | Access::Announce | Access::AnnounceAddOnline => Duration::ZERO,
        };
        (time, operations)
    }

    /// Returns whether valgrind counts the instructions of each operation now.
    fn counts_each_operation(&self) -> bool {
        self.counts_instructions && self.case.counts_each_operation()
    }

    #[inline(never)]
    fn run_pairs(
        &mut self,
        length: impl Fn() -> Length,
        operations: u64,
        end_operation: impl Fn(),
    ) -> Duration {
        self.time_together(|traffic| {
            for _ in 0..operations {
                let frame = traffic.take_one(length());
                traffic.thread_state.free(black_box(frame), length());
                end_operation();
            }
        })
    }

    #[inline(never)]
    fn run_random(
        &mut self,
        length: impl Fn() -> Length,
        operations: u64,
        end_operation: impl Fn(),
    ) -> Duration {
        self.time_together(|traffic| {
            for _ in 0..operations {
                let nth = traffic.next_freed;
                traffic.next_freed = if nth == 0 { traffic.allocations.len() } else { nth } - 1;
                traffic.thread_state.free(traffic.allocations[nth], length());
                traffic.allocations[nth] = traffic.take_one(length());
                end_operation();
            }
        })
    }

    fn run_refused(&mut self, operations: u64, end_operation: impl Fn()) -> Duration {
        let length = self.case.length;
        self.time_together(|traffic| {
            for _ in 0..operations {
                let frame = traffic.thread_state.alloc(black_box(length));
                assert!(frame.is_none(), "memory was found where none is free");
                end_operation();
            }
        })
    }

    #[inline(never)]
    fn run_remote_frees(&mut self, length: impl Fn() -> Length, operations: u64) -> Duration {
        self.time_together(|traffic| {
            let Traffic { allocator, thread_state, remote_role, .. } = traffic;
            remote_role.run(*allocator, thread_state, length(), operations);
        })
    }

    #[inline(never)]
    fn run_bulk(&mut self, length: impl Fn() -> Length, rounds: u64, count: u64) -> Duration {
        let round = |_| {
            self.time_together(|traffic| traffic.take(length(), count))
                + self.time_together(|traffic| traffic.free_all(length()))
        };
        (0..rounds).map(round).sum()
    }

    /// Makes `operations` pairs. In some of them another pair is nested, as by an interrupt between
    /// two calls of the allocator.
    #[inline(never)]
    fn run_interrupted(&mut self, length: impl Fn() -> Length, operations: u64) -> Duration {
        self.time_together(|traffic| {
            let mut pairs_left = operations;
            while pairs_left > 0 {
                let frame = traffic.take_one(length());
                pairs_left -= 1;
                if pairs_left % PAIRS_PER_INTERRUPT == 1 {
                    // An interrupt handler has no magazine of its own.
                    let nested = alloc_until_some(|| traffic.allocator.alloc(length()));
                    traffic.allocator.free(black_box(nested), length());
                    pairs_left -= 1;
                }
                traffic.thread_state.free(black_box(frame), length());
            }
        })
    }

    /// Runs `operations` when all threads have called this function, and returns their CPU time.
    /// Waiting threads spin, because the CPU time would include a wakeup.
    #[inline(always)]
    fn time_together(&mut self, operations: impl FnOnce(&mut Self)) -> Duration {
        self.barrier.wait();
        let started = cpu_time();
        if self.counts_instructions {
            valgrind::start();
        }
        operations(self);
        if self.counts_instructions {
            valgrind::stop();
        }
        cpu_time() - started
    }

    #[inline(always)]
    fn take_one(&mut self, length: Length) -> u64 {
        alloc_until_some(|| self.thread_state.alloc(length))
    }

    #[inline(always)]
    fn take(&mut self, length: Length, count: u64) {
        self.thread_state.take(length, count, &mut self.allocations);
    }

    #[inline(always)]
    fn free_all(&mut self, length: Length) {
        self.thread_state.free_all(length, &mut self.allocations);
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
