//! The workload of will-it-scale's `page_fault1`: the other CPUs allocate, clear and free frames, a
//! working set at a time, in bursts with rests between.
//!
//! During a rest a working set stays free long enough to be reported to the host. In the next burst
//! the host must fault it in again. Each CPU measures its bursts. The CPU that boots starts them
//! one after another, and reports how much memory was reported and allocated again meanwhile.

use super::clock::Clock;
use super::fatal::give_up;
use super::lapic;
use super::limits::MAX_CPUS;
use super::memory::{FRAME_WORDS, FRAMES, alloc_frames};
use super::progress::WATCHDOG;
use super::signal::others;
use super::vectors;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::report::Statistics;
use hotmem::{AllocRequest, Bytes, NodeChoice, NodeId, Pfn, PfnRange};
use hotmem_guest::cmdline::Faults;
use hotmem_guest::event::Event;
use hotmem_guest::frame_words::FRAME_WORDS as WORDS;
use hotmem_guest::to_usize;
use x86_64::instructions::interrupts;

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
    /// The number of bursts that it should do.
    asked: AtomicU32,
    /// The number of bursts that it has done, stored after their time.
    done: AtomicU32,
    /// The total time of all bursts but the first.
    us: AtomicU64,
}

/// The progress of the bursts.
pub(crate) struct Bursts {
    faults: Faults,
    /// The time of each CPU's next burst; `None` during a burst.
    due: [Option<u64>; MAX_CPUS],
    /// The statistics when all CPUs had done their first burst, which uses memory for the first
    /// time.
    before: Option<Statistics>,
    over: bool,
}

/// Writes to all free memory, so that the host backs all of it, and makes other CPUs follow the
/// plan once they start. There are `nodes` nodes.
pub(crate) fn begin(faults: Faults, nodes: u32, clock: Clock) {
    PLAN.call_once(|| Plan { faults, nodes, clock });
    let mut held: Option<PfnRange> = None;
    while let Ok(frames) = alloc_frames(AllocRequest::order(9).movable()) {
        for frame in frames.chunks(1).map(PfnRange::start) {
            // SAFETY: the frame was just allocated.
            unsafe { FRAME_WORDS.write(frame, 0, held.map_or(0, |held| held.start().number())) }
        }
        held = Some(frames);
        WATCHDOG.progress();
    }
    while let Some(frames) = held {
        // SAFETY: the frames are allocated.
        let next = unsafe { FRAME_WORDS.read(frames.start(), 0) };
        let next = Pfn::new(next).filter(|next| next.number() > 0);
        held = next.and_then(|next| PfnRange::with_len(next, PAGEBLOCK_FRAMES as u64));
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
    let number = u32::try_from(cpu - 1).unwrap_or(0) % (*nodes).max(1);
    let node = NodeId(number);
    let list = AllocRequest::frames((faults.set.frames() * 8).div_ceil(FRAME_SIZE));
    let list = alloc_frames(list).unwrap_or_else(|error| give_up(error));
    let mine = &CPUS[cpu];
    loop {
        let burst = mine.wait();
        let started = clock.now_us();
        for _ in 0..faults.rounds {
            round(faults.set.frames(), node, list);
            WATCHDOG.progress();
        }
        if burst > 1 {
            mine.us.fetch_add(clock.now_us().saturating_sub(started), Relaxed);
        }
        // Release pairs with the Acquire in `step`, which then sees the time.
        mine.done.store(burst, Release);
    }
}

/// Runs one round: allocates and clears each frame of a working set, and then frees all of them.
fn round(frames: u64, node: NodeId, list: PfnRange) {
    let entry = FRAME_WORDS.pointer(list.start());
    for index in 0..to_usize(frames) {
        let frame = alloc_frames(AllocRequest::frames(1).movable().node(NodeChoice::Near(node)));
        let frame = frame.unwrap_or_else(|error| give_up(error)).start();
        // SAFETY: the frame was just allocated, and the list has room for all frames.
        unsafe {
            FRAME_WORDS.pointer(frame).write_bytes(0, to_usize(WORDS));
            entry.add(index).write_volatile(frame.number());
        }
    }
    for index in 0..to_usize(frames) {
        // SAFETY: the entry was written above.
        let frame = unsafe { entry.add(index).read_volatile() };
        free_frames(
            Pfn::new(frame).and_then(|frame| PfnRange::with_len(frame, 1)).unwrap_or_default(),
        );
    }
}

fn free_frames(frames: PfnRange) {
    // SAFETY: the frames were allocated here, and are freed once.
    unsafe { FRAMES.free_raw_filled(frames) }.unwrap_or_else(|error| give_up(error));
}

impl Cpu {
    const fn new() -> Cpu {
        Cpu { asked: AtomicU32::new(0), done: AtomicU32::new(0), us: AtomicU64::new(0) }
    }

    /// Halts until a burst is requested. Returns the burst's number.
    fn wait(&self) -> u32 {
        loop {
            interrupts::disable();
            // Relaxed: this orders nothing.
            let asked = self.asked.load(Relaxed);
            if asked != self.done.load(Relaxed) {
                interrupts::enable();
                return asked;
            }
            // The CPU that requests a burst interrupts this one afterwards, but not before it
            // halts.
            interrupts::enable_and_hlt();
        }
    }

    fn is_at_rest(&self) -> bool {
        // Acquire pairs with the Release in `run`.
        self.done.load(Acquire) == self.asked.load(Relaxed)
    }
}

impl Bursts {
    /// Makes the bursts, of which none has begun.
    pub(crate) fn new(faults: Faults) -> Self {
        Bursts { faults, due: [None; MAX_CPUS], before: None, over: false }
    }

    /// Starts the bursts that are due. Returns an event with the results once all are done.
    /// `statistics` are those of the reporter.
    pub(crate) fn step(&mut self, now_us: u64, statistics: Statistics) -> Option<Event<'static>> {
        let count = others();
        let cpus = &CPUS[1..=count];
        let rest = u64::from(self.faults.rest_ms) * 1000;
        if self.over || !self.may_go_on(cpus, statistics) {
            return None;
        }
        let mut interrupts = false;
        for (index, (cpu, due)) in cpus.iter().zip(&mut self.due).enumerate() {
            if !cpu.is_at_rest() {
                continue;
            }
            // Only this CPU writes it.
            let asked = cpu.asked.load(Relaxed);
            // The CPUs take turns: during the burst of one, the memory that another has freed is
            // reported.
            let turn = if asked == 1 { rest * index as u64 / count as u64 } else { 0 };
            let at = *due.get_or_insert(if asked == 0 { 0 } else { now_us + rest + turn });
            if at <= now_us && asked <= self.faults.bursts {
                (*due, interrupts) = (None, true);
                cpu.asked.store(asked + 1, Relaxed);
            }
        }
        if interrupts {
            lapic::interrupt_others(vectors::FLUSH);
        }
        let last = self.faults.bursts + 1;
        self.over = cpus.iter().all(|cpu| cpu.done.load(Acquire) == last);
        let before = self.before.filter(|_| self.over)?;
        let pageblocks = |after: u64, before: u64| {
            Bytes(after.wrapping_sub(before) * PAGEBLOCK_FRAMES as u64 * FRAME_SIZE)
        };
        let rounds = u64::from(self.faults.bursts) * u64::from(self.faults.rounds);
        Some(Event::Faulted {
            cpus: count,
            frames: count as u64 * rounds * self.faults.set.frames(),
            us: cpus.iter().map(|cpu| cpu.us.load(Relaxed)).sum(),
            reported: pageblocks(statistics.reported, before.reported),
            refaulted: pageblocks(statistics.refaulted, before.refaulted),
        })
    }

    /// Returns whether all bursts were measured.
    pub(crate) fn are_over(&self) -> bool {
        self.over
    }

    /// Returns false while some CPUs have done their first burst and others have not.
    fn may_go_on(&mut self, cpus: &[Cpu], statistics: Statistics) -> bool {
        let is_first = |cpu: &Cpu| cpu.asked.load(Relaxed) == 1;
        if self.before.is_some() || !cpus.iter().all(is_first) {
            return true;
        }
        let all = cpus.iter().all(Cpu::is_at_rest);
        self.before = all.then_some(statistics);
        all
    }
}
