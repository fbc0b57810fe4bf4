//! Runs the workload of will-it-scale's `page_fault1` on all CPUs except the boot CPU. In a burst,
//! a CPU allocates the frames of a working set, which must be zero, writes to each, and then frees
//! them. Between bursts it rests.
//!
//! During a rest the working set stays free long enough to be reported to the host, so in the next
//! burst the host must fault its memory in again. Each CPU measures its bursts. The boot CPU starts
//! the bursts. At the end it sends an event with the amount of memory that was reported, and the
//! amount that was allocated again.

use super::fatal::give_up;
use super::memory::{FRAME_WORDS, FRAMES, alloc_frames};
use super::progress::WATCHDOG;
use crate::arch::Clock;
use crate::arch::interrupts;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::report::Statistics;
use hotmem::{AllocRequest, Allocation, Bytes, NodeChoice, NodeId, Pfn, PfnRange};
use hotmem_guest::cmdline::Faults;
use hotmem_guest::event::Event;
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::signal::other_cpus;
use hotmem_guest::to_usize;

/// The plan of the CPUs, written before they start.
static PLAN: spin::Once<Plan> = spin::Once::new();
static CPUS: [Cpu; MAX_CPUS] = [const { Cpu::new() }; MAX_CPUS];

struct Plan {
    faults: Faults,
    nodes: u32,
    clock: Clock,
}

/// The state of a CPU.
struct Cpu {
    /// The number of bursts that the CPU should have done. Only the CPU that boots writes it.
    requested_bursts: AtomicU32,
    /// The number of bursts that the CPU has done. The CPU stores it after `us`.
    finished_bursts: AtomicU32,
    /// The total time of all bursts except the first, in microseconds.
    us: AtomicU64,
}

/// The progress of the bursts.
pub(crate) struct Bursts {
    faults: Faults,
    /// The time at which each CPU's next burst starts; `None` during a burst.
    next_start_us: [Option<u64>; MAX_CPUS],
    /// The reporter's statistics when all CPUs had done their first burst. That burst is not
    /// measured, because it uses the memory for the first time.
    statistics_before: Option<Statistics>,
    is_over: bool,
}

/// Writes to all free memory, so that the host backs all of it. Also sets the plan, which the other
/// CPUs follow when they start. `nodes` is the number of nodes.
pub(crate) fn begin(faults: Faults, nodes: u32, clock: Clock) {
    PLAN.call_once(|| Plan { faults, nodes, clock });
    // The frames of each pageblock hold the number of the first frame of the pageblock that was
    // allocated before it.
    let mut last_block: Option<PfnRange> = None;
    while let Ok(frames) = alloc_frames(AllocRequest::order(9).movable()) {
        for frame in frames.chunks(1).map(PfnRange::start) {
            // SAFETY: the frame was just allocated, so it is mapped and has no other user.
            unsafe {
                FRAME_WORDS.write(frame, 0, last_block.map_or(0, |block| block.start().number()))
            }
        }
        last_block = Some(frames);
        WATCHDOG.progress();
    }
    while let Some(frames) = last_block {
        // SAFETY: `frames` were allocated above, so they are mapped and have no other user.
        let next = unsafe { FRAME_WORDS.read(frames.start(), 0) };
        let next = Pfn::new(next).filter(|next| next.number() > 0);
        last_block = next.and_then(|next| PfnRange::with_len(next, PAGEBLOCK_FRAMES as u64));
        free_frames(frames);
    }
}

/// Returns whether the other CPUs should follow the plan.
pub(crate) fn is_planned() -> bool {
    PLAN.get().is_some()
}

/// Follows the plan, until the machine ends.
pub(crate) fn run(cpu: usize) -> ! {
    let Some(Plan { faults, nodes, clock }) = PLAN.get() else { give_up("there is no plan") };
    let node = NodeId(u32::try_from(cpu - 1).unwrap_or(0) % (*nodes).max(1));
    let list_request = AllocRequest::frames((faults.set.frames() * 8).div_ceil(FRAME_SIZE));
    let list_frames = alloc_frames(list_request).unwrap_or_else(|error| give_up(error));
    let this_cpu = &CPUS[cpu];
    loop {
        let burst = this_cpu.wait();
        let start_us = clock.now_us();
        for _ in 0..faults.rounds {
            round(faults.set.frames(), node, list_frames);
            WATCHDOG.progress();
        }
        if burst > 1 {
            this_cpu.us.fetch_add(clock.now_us().saturating_sub(start_us), Relaxed);
        }
        // Release pairs with the Acquire in `step` and `is_at_rest`: a CPU that reads this
        // number of bursts also sees their time in `us`.
        this_cpu.finished_bursts.store(burst, Release);
    }
}

/// Runs one round: allocates each frame of a working set, which the engine clears unless it is
/// known to be zero, writes to the frame, and then frees all of them.
fn round(frames: u64, node: NodeId, list_frames: PfnRange) {
    let entry = FRAME_WORDS.pointer(list_frames.start());
    let request = AllocRequest::frames(1).movable().node(NodeChoice::Near(node));
    for index in 0..to_usize(frames) {
        let frame = FRAMES.alloc_zeroed(request).map(Allocation::into_raw);
        let frame = frame.unwrap_or_else(|error| give_up(error)).start();
        // SAFETY: the frame was just allocated, so it is mapped and has no other user. The list has
        // an entry for each frame of the working set.
        unsafe {
            FRAME_WORDS.write(frame, 0, 1);
            entry.add(index).write_volatile(frame.number());
        }
    }
    for index in 0..to_usize(frames) {
        // SAFETY: the loop above has written the entry.
        let frame = unsafe { entry.add(index).read_volatile() };
        free_frames(
            Pfn::new(frame).and_then(|frame| PfnRange::with_len(frame, 1)).unwrap_or_default(),
        );
    }
}

fn free_frames(frames: PfnRange) {
    // SAFETY: this file has allocated the frames, and each caller passes frames that no other call
    // frees.
    unsafe { FRAMES.fill_and_free_raw(frames) }.unwrap_or_else(|error| give_up(error));
}

impl Cpu {
    const fn new() -> Cpu {
        Cpu {
            requested_bursts: AtomicU32::new(0),
            finished_bursts: AtomicU32::new(0),
            us: AtomicU64::new(0),
        }
    }

    /// Halts until a burst is requested. Returns the burst's number.
    fn wait(&self) -> u32 {
        loop {
            // Relaxed: the request carries no data, because the plan was written before the CPU
            // started.
            let requested = self.requested_bursts.load(Relaxed);
            if requested != self.finished_bursts.load(Relaxed) {
                return requested;
            }
            // The boot CPU stores `requested_bursts` before it sends the interrupt.
            interrupts::halt_unless(|| self.requested_bursts.load(Relaxed) != requested);
        }
    }

    fn is_at_rest(&self) -> bool {
        // Acquire pairs with the Release in `run`.
        self.finished_bursts.load(Acquire) == self.requested_bursts.load(Relaxed)
    }
}

impl Bursts {
    /// Returns the state before the first burst.
    pub(crate) fn new(faults: Faults) -> Self {
        Bursts { faults, next_start_us: [None; MAX_CPUS], statistics_before: None, is_over: false }
    }

    /// Starts the bursts that are due. Returns an event with the results after the last burst.
    /// `statistics` are those of the reporter.
    pub(crate) fn step(&mut self, now_us: u64, statistics: Statistics) -> Option<Event<'static>> {
        let count = other_cpus();
        let cpus = &CPUS[1..=count];
        let rest_us = u64::from(self.faults.rest_ms) * 1000;
        if self.is_over || !self.record_first_bursts(cpus, statistics) {
            return None;
        }
        let mut has_requested_bursts = false;
        for (index, (cpu, next_start_us)) in cpus.iter().zip(&mut self.next_start_us).enumerate() {
            if !cpu.is_at_rest() {
                continue;
            }
            // Relaxed: only this CPU writes `requested_bursts`.
            let requested = cpu.requested_bursts.load(Relaxed);
            // The second bursts of the CPUs start at different times, so that the memory that one
            // CPU has freed is reported while another CPU runs its burst.
            let delay_us = if requested == 1 { rest_us * index as u64 / count as u64 } else { 0 };
            let start_us = *next_start_us.get_or_insert(if requested == 0 {
                0
            } else {
                now_us + rest_us + delay_us
            });
            if start_us <= now_us && requested <= self.faults.bursts {
                (*next_start_us, has_requested_bursts) = (None, true);
                cpu.requested_bursts.store(requested + 1, Relaxed);
            }
        }
        if has_requested_bursts {
            interrupts::interrupt_others();
        }
        let last = self.faults.bursts + 1;
        self.is_over = cpus.iter().all(|cpu| cpu.finished_bursts.load(Acquire) == last);
        let before = self.statistics_before.filter(|_| self.is_over)?;
        let bytes_since = |after: u64, before: u64| {
            Bytes(after.wrapping_sub(before) * PAGEBLOCK_FRAMES as u64 * FRAME_SIZE)
        };
        let rounds = u64::from(self.faults.bursts) * u64::from(self.faults.rounds);
        Some(Event::Faulted {
            cpus: count,
            frames: count as u64 * rounds * self.faults.set.frames(),
            us: cpus.iter().map(|cpu| cpu.us.load(Relaxed)).sum(),
            reported: bytes_since(statistics.reported, before.reported),
            refaulted: bytes_since(statistics.refaulted, before.refaulted),
        })
    }

    /// Returns whether all bursts were measured.
    pub(crate) fn are_over(&self) -> bool {
        self.is_over
    }

    /// Records `statistics` when all CPUs have done their first burst. Returns whether the next
    /// burst may start: no CPU starts its second burst until all have done their first.
    fn record_first_bursts(&mut self, cpus: &[Cpu], statistics: Statistics) -> bool {
        let is_first = |cpu: &Cpu| cpu.requested_bursts.load(Relaxed) == 1;
        if self.statistics_before.is_some() || !cpus.iter().all(is_first) {
            return true;
        }
        let are_done = cpus.iter().all(Cpu::is_at_rest);
        self.statistics_before = are_done.then_some(statistics);
        are_done
    }
}
