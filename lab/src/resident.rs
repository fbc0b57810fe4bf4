//! Measures the resident memory of a process, over time.

use crate::plot::Series;
use anyhow::{Context, Result};
use hotmem::Bytes;
use std::{
    fs,
    io::{BufReader, Read, Seek, SeekFrom},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A sample of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The time.
    pub at: Instant,
    /// Its resident memory.
    pub resident: Bytes,
}

/// A thread that samples a process periodically.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Watch {
    /// Samples process `pid` from now on, at this interval.
    #[must_use]
    pub fn start(pid: u32, every: Duration) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Relaxed) {
                let Some(resident) = resident(pid) else { break };
                samples.push(Sample { at: Instant::now(), resident });
                thread::sleep(every);
            }
            samples
        });
        Watch { stop, thread }
    }

    /// Stops sampling and returns the samples.
    #[must_use]
    pub fn finish(self) -> Vec<Sample> {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Returns the resident memory of a process, counting shared memory in full, or `None` if there is
/// no such process.
#[must_use]
pub fn resident(pid: u32) -> Option<Bytes> {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// Returns the resident memory of this process.
///
/// # Errors
/// If the kernel does not report it.
pub fn resident_here() -> Result<Bytes> {
    resident(std::process::id()).context("no VmRSS in /proc/self/status")
}

/// Returns how much of the `length` bytes at `address` is committed, in memory or swapped out. What
/// other threads allocate and free elsewhere does not affect it.
///
/// # Errors
/// If the kernel does not report it.
pub fn held_at(address: NonNull<u8>, length: Bytes) -> Result<Bytes> {
    /// The flags for present and swapped pages in an entry of pagemap (Linux,
    /// Documentation/admin-guide/mm/pagemap.rst).
    const HELD: u64 = 1 << 63 | 1 << 62;
    let page = rustix::param::page_size() as u64;
    let pages = length.0.div_ceil(page);
    let mut pagemap = fs::File::open("/proc/self/pagemap").context("/proc/self/pagemap")?;
    pagemap.seek(SeekFrom::Start(address.addr().get() as u64 / page * 8))?;
    let mut entries = BufReader::with_capacity(1 << 16, pagemap.take(pages * 8));
    let mut held = 0;
    let mut entry = [0; 8];
    for _ in 0..pages {
        entries.read_exact(&mut entry).context("/proc/self/pagemap")?;
        held += u64::from(u64::from_ne_bytes(entry) & HELD != 0);
    }
    Ok(Bytes(held * page))
}

/// Returns the resident memory of a process, counting its share of shared memory. This is slower
/// than [`resident`], because the kernel walks every page.
#[must_use]
pub fn proportional(pid: u32) -> Option<Bytes> {
    field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")
}

/// Returns the CPU time that a process has used, to the nanosecond. The ticks of `/proc` are too
/// long for an idle guest.
#[must_use]
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let pid = nix::unistd::Pid::from_raw(pid.try_into().ok()?);
    Some(nix::time::clock_getcpuclockid(pid).ok()?.now().ok()?.into())
}

/// Returns the value of a field in kB in one of the kernel's files.
fn field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

/// Returns how long after `freed` the process reached its final size, within 2 % of the memory that
/// it gave back. Returns `None` if it gave back next to nothing.
#[must_use]
pub fn settled(samples: &[Sample], freed: Instant) -> Option<Duration> {
    let before = samples.iter().rev().find(|sample| sample.at <= freed)?.resident.0;
    let after: Vec<_> = samples.iter().filter(|sample| sample.at > freed).collect();
    let left = after.last()?.resident.0;
    let given = before.checked_sub(left).filter(|&given| given > before / 10)?;
    let first = after.iter().find(|sample| sample.resident.0 <= left + given / 50)?;
    Some(first.at - freed)
}

/// Converts samples to a line of a plot, in seconds since `start` and GiB.
#[must_use]
pub fn series(samples: &[Sample], start: Instant) -> Series {
    let point = |sample: &Sample| {
        let seconds = sample.at.saturating_duration_since(start).as_secs_f64();
        (seconds, sample.resident.0 as f64 / f64::from(1 << 30))
    };
    samples.iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PATIENCE;

    #[test]
    fn a_process_has_resident_memory_and_cpu_time() {
        // Samples a child process: in this process, threads of other tests allocate memory between
        // two samples.
        let mut idle = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = idle.id();
        // A process that is not loaded yet uses CPU time, too.
        let held = || {
            let (before, proportional) = (resident(pid)?, proportional(pid)?);
            Some((before, proportional)).filter(|_| resident(pid) == Some(before))
        };
        let started = Instant::now();
        let held = std::iter::repeat_with(held)
            .take_while(|_| started.elapsed() < PATIENCE)
            .find_map(|held| held.filter(|(_, proportional)| *proportional > Bytes::ZERO));
        let used = cpu_time(pid);
        idle.kill().unwrap();
        idle.wait().unwrap();
        let (resident, proportional) = held.unwrap();
        assert!(resident.0 + (1 << 20) > proportional.0, "{resident} {proportional}");
        assert!(used.is_some());
        assert_eq!(super::resident(u32::MAX), None);
    }

    #[test]
    fn touched_memory_is_resident() {
        let page = rustix::param::page_size();
        let mut room = vec![0_u8; 64 * page];
        let start = room.as_ptr().align_offset(page);
        let room = &mut room[start..][..63 * page];
        let address = NonNull::from(&mut room[0]);
        let held = |pages: usize| held_at(address, Bytes((pages * page) as u64)).unwrap();
        room.fill(1);
        assert_eq!(held(63), Bytes(63 * page as u64));
        assert_eq!(held(7), Bytes(7 * page as u64));
    }

    #[test]
    fn a_process_has_settled_when_it_has_returned_nearly_all() {
        let start = Instant::now();
        let sample =
            |ms, mib| Sample { at: start + Duration::from_millis(ms), resident: Bytes::mib(mib) };
        let samples = [
            sample(0, 1000),
            sample(100, 1000),
            sample(200, 1000),
            sample(300, 500),
            sample(400, 117),
            sample(500, 100),
        ];
        let freed = start + Duration::from_millis(150);
        assert_eq!(settled(&samples, freed), Some(Duration::from_millis(250)));
        assert_eq!(settled(&samples[..3], freed), None);
    }

    #[test]
    fn a_watch_samples_repeatedly() {
        // Wait longer each time, until the sampling thread was scheduled.
        let long = (3..).map(|n| Duration::from_millis(1 << n)).take_while(|&long| long < PATIENCE);
        let watched = long.map(|long| {
            let watch = Watch::start(std::process::id(), Duration::from_millis(1));
            thread::sleep(long);
            watch.finish()
        });
        let samples = watched.into_iter().find(|samples| samples.len() > 2).unwrap();
        assert!(samples.is_sorted_by_key(|sample| sample.at));
    }
}
