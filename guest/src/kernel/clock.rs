//! Time: the CPU's time-stamp counter, and how fast it counts.

use super::pit;
use core::arch::x86_64::{__cpuid, _rdtsc};
use core::fmt;

/// A time-stamp counter whose speed is not known yet.
pub(crate) struct Stopwatch {
    started: u64,
}

/// Microseconds since the kernel's first instructions.
pub(crate) struct Clock {
    started: u64,
    hz: u64,
}

/// Neither the CPU nor the 8254 tells how fast the counter counts.
pub(crate) struct UnknownSpeed;

/// Shortest time to measure over: the error is then about one count of the 8254 in 1193.
const MIN_COUNTS: u32 = pit::HZ / 1000;
/// Even a port that answers in a nanosecond takes longer than that to count to `MIN_COUNTS`.
const MAX_READS: u32 = 10_000_000;

impl Stopwatch {
    /// Starts counting, beside a timer of known speed.
    pub(crate) fn start() -> Self {
        pit::start_countdown();
        Stopwatch { started: tsc() }
    }

    /// Finds out how fast the counter counts: what the CPU says, or else what the 8254 counted
    /// meanwhile, so that boot does not wait; or what it counts from now on, while it ticks
    /// `ticks` times a second.
    pub(crate) fn calibrate(self, ticks: u32) -> Result<Clock, UnknownSpeed> {
        let hz = match speed_by_cpuid() {
            Some(hz) => hz,
            None if pit::has_countdown() => measure(self.started)?,
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

/// `started` is when the 8254 was started, or too long ago.
fn measure(mut started: u64) -> Result<u64, UnknownSpeed> {
    for _ in 0..MAX_READS {
        let (counts, now) = (pit::counted(), tsc());
        match counts {
            Some(counts) if counts >= MIN_COUNTS => {
                return speed(now.wrapping_sub(started), counts);
            }
            Some(_) => {}
            None => {
                pit::start_countdown();
                started = tsc();
            }
        }
    }
    Err(UnknownSpeed)
}

/// While channel 0 of the 8254 counts from `period` down, again and again.
fn measure_by_ticks(period: u32) -> Result<u64, UnknownSpeed> {
    let (mut last, started) = (pit::left(), tsc());
    let mut counts = 0;
    for _ in 0..MAX_READS {
        let (left, now) = (pit::left(), tsc());
        let next = if left > last { last + period } else { last };
        counts += next.saturating_sub(left);
        last = left;
        if counts >= MIN_COUNTS {
            return speed(now.wrapping_sub(started), counts);
        }
    }
    Err(UnknownSpeed)
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
