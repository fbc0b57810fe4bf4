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

impl Stopwatch {
    /// Starts counting, beside a timer of known speed.
    pub(crate) fn start() -> Self {
        pit::start_countdown();
        Stopwatch { started: tsc() }
    }

    /// Finds out how fast the counter counts: what the CPU says, or else what the 8254 counted
    /// meanwhile, so that boot does not wait.
    pub(crate) fn calibrate(self) -> Result<Clock, UnknownSpeed> {
        let hz = match speed_by_cpuid() {
            Some(hz) => hz,
            None => measure(self.started)?,
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
    // Even a port that answers in a nanosecond takes longer than that to count to `MIN_COUNTS`.
    const MAX_READS: u32 = 10_000_000;
    for _ in 0..MAX_READS {
        let (counts, now) = (pit::counted(), tsc());
        match counts {
            Some(counts) if counts >= MIN_COUNTS => {
                let hz = u128::from(now.wrapping_sub(started)) * u128::from(pit::HZ);
                let hz = u64::try_from(hz / u128::from(counts)).map_err(|_| UnknownSpeed)?;
                return if hz == 0 { Err(UnknownSpeed) } else { Ok(hz) };
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
