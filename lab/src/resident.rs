//! Measures the resident memory and the CPU time of a process.

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

/// The resident memory of a process at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The time.
    pub time: Instant,
    /// The resident memory.
    pub resident: Bytes,
}

/// A thread that samples the resident memory of a process periodically.
pub struct Sampler {
    must_stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    /// Starts a thread that samples process `pid` at this interval.
    #[must_use]
    pub fn start(pid: u32, interval: Duration) -> Sampler {
        let must_stop = Arc::new(AtomicBool::new(false));
        let thread_must_stop = Arc::clone(&must_stop);
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            while !thread_must_stop.load(Relaxed) {
                let Some(resident) = resident(pid) else { break };
                samples.push(Sample { time: Instant::now(), resident });
                thread::sleep(interval);
            }
            samples
        });
        Sampler { must_stop, thread }
    }

    /// Stops sampling and returns the samples.
    #[must_use]
    pub fn finish(self) -> Vec<Sample> {
        self.must_stop.store(true, Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Returns the resident memory of a process, or `None` if there is no such process. Memory that is
/// shared with other processes counts in full.
#[must_use]
pub fn resident(pid: u32) -> Option<Bytes> {
    field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")
}

/// Returns the resident memory of this process.
///
/// # Errors
/// The kernel does not report it.
pub fn resident_here() -> Result<Bytes> {
    resident(std::process::id()).context("no VmRSS in /proc/self/status")
}

/// Returns the size of the pages among the `length` bytes at `address` that are committed: present
/// in memory or swapped out. Other memory of the process does not count.
///
/// # Errors
/// The kernel does not report it.
pub fn committed_at(address: NonNull<u8>, length: Bytes) -> Result<Bytes> {
    /// The flags of present pages and of swapped pages in an entry of pagemap (Linux,
    /// Documentation/admin-guide/mm/pagemap.rst).
    const COMMITTED: u64 = 1 << 63 | 1 << 62;
    let page_size = rustix::param::page_size() as u64;
    let pages = length.0.div_ceil(page_size);
    let mut pagemap = fs::File::open("/proc/self/pagemap").context("/proc/self/pagemap")?;
    pagemap.seek(SeekFrom::Start(address.addr().get() as u64 / page_size * 8))?;
    let mut entries = BufReader::with_capacity(1 << 16, pagemap.take(pages * 8));
    let mut committed = 0;
    let mut entry = [0; 8];
    for _ in 0..pages {
        entries.read_exact(&mut entry).context("/proc/self/pagemap")?;
        committed += u64::from(u64::from_ne_bytes(entry) & COMMITTED != 0);
    }
    Ok(Bytes(committed * page_size))
}

/// Returns the proportional set size of a process: of each page that several processes share, an
/// equal part counts. This is slower than [`resident`], because the kernel walks all pages.
#[must_use]
pub fn proportional(pid: u32) -> Option<Bytes> {
    field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")
}

/// Returns the CPU time that a process has used, with a resolution of nanoseconds. The ticks of
/// `/proc/PID/stat` are too coarse to measure an idle guest.
#[must_use]
pub fn cpu_time(pid: u32) -> Option<Duration> {
    let pid = nix::unistd::Pid::from_raw(pid.try_into().ok()?);
    Some(nix::time::clock_getcpuclockid(pid).ok()?.now().ok()?.into())
}

/// Returns the value of a field in kB in the text of a file below `/proc`.
fn field(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024).map(Bytes)
}

/// Returns the time from `freed` until the process had returned 98 % of the memory that it returned
/// to the host in all. Returns `None` if it returned at most a tenth of its memory.
#[must_use]
pub fn time_to_return(samples: &[Sample], freed: Instant) -> Option<Duration> {
    let before = samples.iter().rev().find(|sample| sample.time <= freed)?.resident.0;
    let after: Vec<_> = samples.iter().filter(|sample| sample.time > freed).collect();
    let at_end = after.last()?.resident.0;
    let returned = before.checked_sub(at_end).filter(|&returned| returned > before / 10)?;
    let first = after.iter().find(|sample| sample.resident.0 <= at_end + returned / 50)?;
    Some(first.time - freed)
}

/// Converts samples to a line of a plot: the seconds since `start`, and the resident memory in GiB.
#[must_use]
pub fn series(samples: &[Sample], start: Instant) -> Series {
    let point = |sample: &Sample| {
        let seconds = sample.time.saturating_duration_since(start).as_secs_f64();
        (seconds, sample.resident.0 as f64 / f64::from(1 << 30))
    };
    samples.iter().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience;

    #[test]
    fn a_process_has_resident_memory_and_cpu_time() {
        // The samples are those of a child process, because in this process threads of other tests
        // allocate memory between two samples.
        let mut idle = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = idle.id();
        // The child has CPU time already before its program is loaded, so the loop waits for stable
        // resident memory.
        let stable_memory = || {
            let (before, proportional) = (resident(pid)?, proportional(pid)?);
            Some((before, proportional)).filter(|_| resident(pid) == Some(before))
        };
        let started = Instant::now();
        let memory = std::iter::repeat_with(stable_memory)
            .take_while(|_| started.elapsed() < patience())
            .find_map(|memory| memory.filter(|(_, proportional)| *proportional > Bytes::ZERO));
        let used = cpu_time(pid);
        idle.kill().unwrap();
        idle.wait().unwrap();
        let (resident, proportional) = memory.unwrap();
        assert!(resident.0 + (1 << 20) > proportional.0, "{resident} {proportional}");
        assert!(used.is_some());
        assert_eq!(super::resident(u32::MAX), None);
    }

    #[test]
    fn written_memory_is_committed() {
        let page = rustix::param::page_size();
        let mut buffer = vec![0_u8; 64 * page];
        let start = buffer.as_ptr().align_offset(page);
        let buffer = &mut buffer[start..][..63 * page];
        let address = NonNull::from(&mut buffer[0]);
        let committed = |pages: usize| committed_at(address, Bytes((pages * page) as u64)).unwrap();
        buffer.fill(1);
        assert_eq!(committed(63), Bytes(63 * page as u64));
        assert_eq!(committed(7), Bytes(7 * page as u64));
    }

    #[test]
    fn time_to_return_ends_at_98_percent_of_the_returned_memory() {
        let start = Instant::now();
        let sample =
            |ms, mib| Sample { time: start + Duration::from_millis(ms), resident: Bytes::mib(mib) };
        let samples = [
            sample(0, 1000),
            sample(100, 1000),
            sample(200, 1000),
            sample(300, 500),
            sample(400, 117),
            sample(500, 100),
        ];
        let freed = start + Duration::from_millis(150);
        assert_eq!(time_to_return(&samples, freed), Some(Duration::from_millis(250)));
        assert_eq!(time_to_return(&samples[..3], freed), None);
    }

    #[test]
    fn a_sampler_takes_several_samples() {
        // Each attempt waits twice as long, because the sampling thread may not run at once.
        let waits =
            (3..).map(|n| Duration::from_millis(1 << n)).take_while(|&wait| wait < patience());
        let attempts = waits.map(|wait| {
            let sampler = Sampler::start(std::process::id(), Duration::from_millis(1));
            thread::sleep(wait);
            sampler.finish()
        });
        let samples = attempts.into_iter().find(|samples| samples.len() > 2).unwrap();
        assert!(samples.is_sorted_by_key(|sample| sample.time));
    }
}
