//! Time: the CPU's time-stamp counter, and how fast it counts.

use super::pit;
use core::arch::x86_64::{__cpuid, _rdtsc};
use core::fmt;

/// A time-stamp counter whose speed is not known yet.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch {
    started: u64,
    /// What it counted while the timer beside it was started.
    slack: u64,
}

/// Microseconds since the kernel's first instructions.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    started: u64,
    hz: u64,
}

/// Neither the CPU nor the 8254 tells how fast the counter counts.
pub(crate) struct UnknownSpeed;

/// Shortest time to measure over: the error is then about one count of the 8254 in 1193.
const MIN_COUNTS: u32 = pit::HZ / 1000;
/// What may have been counted between a look at the timer and one at the counter is less than this
/// part of all: a host that takes the CPU away just then would make the clock wrong by any factor.
const LEAST_SLACK: u64 = 16;
/// Even a port that answers in a nanosecond takes longer than that to count to `MIN_COUNTS`.
const MAX_READS: u32 = 10_000_000;

impl Stopwatch {
    /// Starts counting, beside a timer of known speed.
    pub(crate) fn start() -> Self {
        let before = tsc();
        pit::start_countdown();
        let started = tsc();
        Stopwatch { started, slack: started.wrapping_sub(before) }
    }

    /// Finds out how fast the counter counts: what the CPU says, or else what the 8254 counted
    /// meanwhile, so that boot does not wait; or what it counts from now on, while it ticks
    /// `ticks` times a second.
    pub(crate) fn calibrate(self, ticks: u32) -> Result<Clock, UnknownSpeed> {
        let hz = match speed_by_cpuid() {
            Some(hz) => hz,
            None if pit::has_countdown() => measure(self)?,
            None => measure_by_ticks(pit::counts_per_tick(ticks))?,
        };
        Ok(Clock { started: self.started, hz })
    }
}

impl Clock {
    pub(crate) fn now_us(&self) -> u64 {
        let counted = u128::from(tsc().wrapping_sub(self.started));
        u64::try_from(counted * 1_000_000 / u128::from(self.hz)).unwrap_or(u64::MAX)
    }
}

/// While the 8254 counts down, which was started with the stopwatch, or starts again with another.
fn measure(mut stopwatch: Stopwatch) -> Result<u64, UnknownSpeed> {
    for _ in 0..MAX_READS {
        let (before, counts, now) = (tsc(), pit::counted(), tsc());
        let counted = now.wrapping_sub(stopwatch.started);
        let slack = stopwatch.slack + now.wrapping_sub(before);
        match counts {
            Some(counts) if counts >= MIN_COUNTS && slack < counted / LEAST_SLACK => {
                return speed(counted, counts);
            }
            Some(_) => {}
            None => stopwatch = Stopwatch::start(),
        }
    }
    Err(UnknownSpeed)
}

/// While channel 0 of the 8254 counts from `period` down, again and again.
fn measure_by_ticks(period: u32) -> Result<u64, UnknownSpeed> {
    let mut ticks = Ticks::begin();
    let mut attempts = 16;
    for _ in 0..MAX_READS {
        let (counted, slack) = ticks.look(period);
        let is_good = slack < counted / LEAST_SLACK && ticks.is_gapless(counted, period);
        // A host that lets no attempt be good is given a clock that may be slow, rather than none.
        if ticks.counts >= MIN_COUNTS && (is_good || attempts == 0) {
            return speed(counted, ticks.counts);
        }
        if ticks.counts > 4 * period {
            ticks = Ticks::begin();
            attempts -= 1;
        }
    }
    Err(UnknownSpeed)
}

/// What channel 0 of the 8254 has counted, look by look.
struct Ticks {
    started: u64,
    slack: u64,
    left: u32,
    counts: u32,
    /// What the time-stamp counter was before the last look, and the most that it counted from
    /// before one to after the next.
    looked: u64,
    longest: u64,
}

impl Ticks {
    fn begin() -> Self {
        let (looked, left, started) = (tsc(), pit::left(), tsc());
        let slack = started.wrapping_sub(looked);
        Ticks { started, slack, left, counts: 0, looked, longest: 0 }
    }

    /// Returns what the time-stamp counter has counted meanwhile, and what of it may be too much.
    fn look(&mut self, period: u32) -> (u64, u64) {
        let (before, left, now) = (tsc(), pit::left(), tsc());
        let from = if left > self.left { self.left + period } else { self.left };
        self.counts += from.saturating_sub(left);
        self.longest = now.wrapping_sub(self.looked).max(self.longest);
        (self.left, self.looked) = (left, before);
        (now.wrapping_sub(self.started), self.slack + now.wrapping_sub(before))
    }

    /// Returns whether no period can have gone unseen between two looks.
    fn is_gapless(&self, counted: u64, period: u32) -> bool {
        let (longest, counts) = (u128::from(self.longest), u128::from(self.counts));
        self.longest < counted / 4
            && longest * counts < u128::from(counted) * u128::from(period / 2)
    }
}

/// Hertz of what counted to `counted` while the 8254 counted to `counts`.
fn speed(counted: u64, counts: u32) -> Result<u64, UnknownSpeed> {
    let hz = u128::from(counted) * u128::from(pit::HZ) / u128::from(counts);
    u64::try_from(hz).ok().filter(|&hz| hz != 0).ok_or(UnknownSpeed)
}

/// Leaf 0x15 (crystal and ratio) or the hypervisors' leaf 0x4000_0010 (kHz).
fn speed_by_cpuid() -> Option<u64> {
    let cpuid = |leaf| {
        // The instruction exists on every CPU with a 64-bit mode.
        __cpuid(leaf)
    };
    if cpuid(0).eax >= 0x15 {
        let leaf = cpuid(0x15);
        if leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0 {
            return Some(u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax));
        }
    }
    let under_hypervisor = cpuid(1).ecx & 1 << 31 != 0;
    if under_hypervisor && cpuid(0x4000_0000).eax >= 0x4000_0010 {
        let khz = cpuid(0x4000_0010).eax;
        return (khz != 0).then_some(u64::from(khz) * 1000);
    }
    None
}

fn tsc() -> u64 {
    // SAFETY: every CPU with a 64-bit mode has the counter, and the kernel runs in ring 0.
    unsafe { _rdtsc() }
}

impl fmt::Display for UnknownSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither CPUID nor the 8254 tells the time-stamp counter's speed")
    }
}
