//! Measures time by the CPU's time-stamp counter (TSC), whose frequency it determines.

use super::io_port::IoPort;
use super::lapic::{self, LocalApic};
use super::pit;
use core::arch::x86_64::{__cpuid, _rdtsc};
use core::fmt;

/// A TSC whose frequency is not known yet.
#[derive(Clone, Copy)]
pub(crate) struct Stopwatch {
    start_tsc: u64,
    /// The number of TSC cycles that it took to start the timer.
    start_cycles: u64,
}

/// A clock of the microseconds since the kernel's first instructions.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start_tsc: u64,
    hz: u64,
}

/// Neither the CPU nor a timer yields the TSC frequency.
pub(crate) struct UnknownSpeed;

/// The shortest measurement, in counts of the 8254. Its error is about one count in 1193.
const MIN_COUNTS: u32 = pit::HZ / 1000;
/// A measurement is used only if it is longer than the slack times this number. The slack is the
/// number of cycles between the reads of the timer and of the TSC. It is large if the host preempts
/// the CPU between them, and then the measured frequency would be wrong.
const SLACK_DIVISOR: u64 = 16;
/// The maximal number of reads of the timer. Even if each read takes only one nanosecond, the 8254
/// reaches `MIN_COUNTS` before this number of reads.
const MAX_READS: u32 = 10_000_000;
/// The number of measurements that the host may disturb before an inexact result is used.
const ATTEMPTS: u32 = 16;

/// The frequency and the bits of ACPI's power-management timer (ACPI 6.5, 4.8.3.3). Some have 32
/// bits, of which all machines have the lower 24.
const PM_TIMER_HZ: u32 = 3_579_545;
const PM_TIMER_MASK: u32 = 0xff_ffff;

impl Stopwatch {
    /// Starts a measurement, together with a timer of known frequency.
    pub(crate) fn start() -> Self {
        let before = tsc();
        pit::start_countdown();
        let started = tsc();
        Stopwatch { start_tsc: started, start_cycles: started.wrapping_sub(before) }
    }

    /// Determines the TSC frequency from CPUID. If CPUID does not give it, uses the 8254's
    /// countdown, which `start` has begun so that boot need not wait for it. If there is no
    /// countdown, uses the first timer that exists: channel 0 of the 8254, which ticks `ticks` times a
    /// second, ACPI's power-management timer, or that of the local APIC, which must be unused.
    pub(crate) fn calibrate(
        self,
        ticks: Option<u32>,
        pm_timer: Option<IoPort>,
    ) -> Result<Clock, UnknownSpeed> {
        let hz = match (speed_by_cpuid(), ticks, pm_timer, LocalApic::get()) {
            (Some(hz), ..) => hz,
            (None, ..) if pit::has_countdown() => measure(self)?,
            (None, Some(ticks), ..) => measure_by_ticks(pit::counts_per_tick(ticks))?,
            (None, None, Some(port), _) => {
                measure_by_counter(|| pm_timer_counts(port), PM_TIMER_MASK, PM_TIMER_HZ)?
            }
            (None, None, None, Some(apic)) => {
                apic.start_countdown();
                measure_by_counter(|| apic.counts_elapsed(), u32::MAX, lapic::TIMER_HZ)?
            }
            (None, None, None, None) => return Err(UnknownSpeed),
        };
        Ok(Clock { start_tsc: self.start_tsc, hz })
    }
}

impl Clock {
    pub(crate) fn now_us(&self) -> u64 {
        let cycles = u128::from(tsc().wrapping_sub(self.start_tsc));
        u64::try_from(cycles * 1_000_000 / u128::from(self.hz)).unwrap_or(u64::MAX)
    }
}

/// Measures by the 8254's countdown that began with the stopwatch. If that countdown has finished,
/// starts another one.
fn measure(mut stopwatch: Stopwatch) -> Result<u64, UnknownSpeed> {
    for _ in 0..MAX_READS {
        let (before, counts, now) = (tsc(), pit::counts_elapsed(), tsc());
        let cycles = now.wrapping_sub(stopwatch.start_tsc);
        let slack = stopwatch.start_cycles + now.wrapping_sub(before);
        match counts {
            Some(counts) if counts >= MIN_COUNTS && slack < cycles / SLACK_DIVISOR => {
                return speed(cycles, counts, pit::HZ);
            }
            Some(_) => {}
            None => stopwatch = Stopwatch::start(),
        }
    }
    Err(UnknownSpeed)
}

/// Measures by channel 0 of the 8254, which repeatedly counts down from `period`.
fn measure_by_ticks(period: u32) -> Result<u64, UnknownSpeed> {
    let mut ticks = Ticks::begin();
    let mut attempts = ATTEMPTS;
    for _ in 0..MAX_READS {
        let (cycles, slack) = ticks.read_counter(period);
        let is_good = slack < cycles / SLACK_DIVISOR && ticks.is_gapless(cycles, period);
        // If the host has disturbed every attempt, accept an inexact result: the run needs a clock.
        if ticks.counts >= MIN_COUNTS && (is_good || attempts == 0) {
            return speed(cycles, ticks.counts, pit::HZ);
        }
        if ticks.counts > 4 * period {
            ticks = Ticks::begin();
            attempts -= 1;
        }
    }
    Err(UnknownSpeed)
}

/// Measures by a counter of `counter_hz` that counts up through the bits of `mask`.
fn measure_by_counter(
    counter: impl Fn() -> u32,
    mask: u32,
    counter_hz: u32,
) -> Result<u64, UnknownSpeed> {
    let sample = || {
        let (before, count, after) = (tsc(), counter(), tsc());
        (before, count, after.wrapping_sub(before))
    };
    let (mut start, mut attempts) = (sample(), ATTEMPTS);
    let (mut last_tsc, mut longest_gap) = (start.0, 0);
    for _ in 0..MAX_READS {
        let (now, count, slack) = sample();
        let counts = count.wrapping_sub(start.1) & mask;
        let (cycles, slack) = (now.wrapping_sub(start.0), start.2 + slack);
        longest_gap = longest_gap.max(now.wrapping_sub(last_tsc));
        last_tsc = now;
        if counts < counter_hz / 1000 {
            continue;
        }
        // After a long gap between two reads, the counter may have wrapped around.
        let is_good = slack < cycles / SLACK_DIVISOR && longest_gap < cycles / 4;
        if is_good || attempts == 0 {
            return speed(cycles, counts, counter_hz);
        }
        if counts > counter_hz / 10 {
            (start, longest_gap, attempts) = ((now, count, slack), 0, attempts - 1);
        }
    }
    Err(UnknownSpeed)
}

fn pm_timer_counts(port: IoPort) -> u32 {
    // SAFETY: the firmware names the port, and reading the timer has no effect.
    unsafe { port.read_u32() }
}

/// Accumulates the counts of channel 0 of the 8254.
struct Ticks {
    start_tsc: u64,
    /// The number of TSC cycles that the first read of the counter took.
    start_cycles: u64,
    /// The last value of the counter, which counts down.
    counter: u32,
    /// The number of counts since the first read.
    counts: u32,
    /// The TSC before the last read of the counter.
    last_read: u64,
    /// The maximal number of TSC cycles between two reads.
    max_read_cycles: u64,
}

impl Ticks {
    fn begin() -> Self {
        let (last_read, counter, started) = (tsc(), pit::counts_left(), tsc());
        let slack = started.wrapping_sub(last_read);
        Ticks {
            start_tsc: started,
            start_cycles: slack,
            counter,
            counts: 0,
            last_read,
            max_read_cycles: 0,
        }
    }

    /// Reads the counter. Returns the number of TSC cycles since `begin`, and the maximal error of
    /// that number.
    fn read_counter(&mut self, period: u32) -> (u64, u64) {
        let (before, counter, now) = (tsc(), pit::counts_left(), tsc());
        let from = if counter > self.counter { self.counter + period } else { self.counter };
        self.counts += from.saturating_sub(counter);
        self.max_read_cycles = now.wrapping_sub(self.last_read).max(self.max_read_cycles);
        (self.counter, self.last_read) = (counter, before);
        (now.wrapping_sub(self.start_tsc), self.start_cycles + now.wrapping_sub(before))
    }

    /// Returns whether no whole period can have passed between two reads.
    fn is_gapless(&self, cycles: u64, period: u32) -> bool {
        let (longest, counts) = (u128::from(self.max_read_cycles), u128::from(self.counts));
        self.max_read_cycles < cycles / 4
            && longest * counts < u128::from(cycles) * u128::from(period / 2)
    }
}

/// Computes the frequency in Hz of a counter that advanced by `cycles` while a timer of `timer_hz`
/// advanced by `counts`.
fn speed(cycles: u64, counts: u32, timer_hz: u32) -> Result<u64, UnknownSpeed> {
    let hz = u128::from(cycles) * u128::from(timer_hz) / u128::from(counts);
    u64::try_from(hz).ok().filter(|&hz| hz != 0).ok_or(UnknownSpeed)
}

/// Reads the frequency from leaf 0x15 (crystal and ratio) or the hypervisors' leaf 0x4000_0010
/// (kHz).
fn speed_by_cpuid() -> Option<u64> {
    let cpuid = |leaf| {
        // CPUID exists on every CPU with a 64-bit mode.
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
        f.write_str("neither CPUID nor a timer yields the frequency of the time-stamp counter")
    }
}
