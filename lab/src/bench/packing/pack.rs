//! Starts guest after guest until the next one does not fit, and measures each of them.

use super::{args::Args, cgroup::Cgroup, subject::Subject};
use crate::{
    bench::record::{Metric, Sample},
    guest::{Guests, Policy},
    progress,
    qemu::{Balloon, Config, Error, Event, Vm, host},
    resident::{self, Sampler},
    size,
};
use anyhow::{Context, Result, bail};
use hotmem::Bytes;
use std::{
    thread,
    time::{Duration, Instant},
};

/// The number of guests that ran at the same time.
pub(in crate::bench) const GUESTS: Metric = ("guests", "count");
/// The resident memory of a guest's QEMU after the guest has freed its memory, including a share of
/// the memory that processes share.
pub(in crate::bench) const RESIDENT_AFTER_FREE: Metric = ("residual", "MiB");
/// The memory that all guests hold together.
pub(in crate::bench) const TOTAL_HELD: Metric = ("held", "MiB");
/// The time from the guest's freeing of its memory until the resident memory no longer changes.
pub(in crate::bench) const SETTLE_TIME: Metric = ("settle", "s");
/// The CPU use of an idle guest, in percent of a CPU.
pub(in crate::bench) const IDLE: Metric = ("idle", "%");

/// The time between two reads of a guest's resident memory.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A guest has settled when its resident memory has not shrunk for this long.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// A guest leaves this part of its memory to its kernel: one twelfth.
const KERNEL_DIVISOR: u64 = 12;

/// The state of a running bench.
pub(super) struct Bench<'a> {
    pub(super) args: &'a Args,
    pub(super) guests: Guests,
    pub(super) sample: &'a mut Sample,
}

impl Bench<'_> {
    /// Runs a warm-up, and then starts guest after guest until the next one does not fit.
    pub(super) fn pack(&mut self, subject: Subject) -> Result<()> {
        let cgroup = Cgroup::new(self.args.host);
        let case = self.args.case(cgroup.is_some());
        let bar = progress::bar(self.args.max_guests.into());
        bar.set_message(format!("{}: warming up", subject.name()));
        if self.start(subject, 0, cgroup.as_ref(), &[], None)?.is_none() {
            bail!("no guest fits on the host");
        }
        let mut running: Vec<Vm> = Vec::new();
        while running.len() < self.args.max_guests as usize {
            let number = running.len();
            let used = used(cgroup.as_ref(), &running);
            let held = size::approximate(used.unwrap_or_default());
            let (name, limit) = (subject.name(), self.args.host);
            bar.set_message(format!("{name}: {number} guests hold {held} of {limit}"));
            match self.start(subject, number, cgroup.as_ref(), &running, Some(&case))? {
                Some(vm) => running.push(vm),
                None => break,
            }
            if let Some(held) = self::used(cgroup.as_ref(), &running) {
                let case = format!("{case}/after-guest-{}", running.len());
                self.sample.add(&case, name, TOTAL_HELD, held.0 as f64 / f64::from(1 << 20));
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let (name, count) = (subject.name(), running.len() as f64);
        if running.len() == self.args.max_guests as usize {
            self.sample.add_stopped(&case, name, GUESTS, count);
        } else {
            self.sample.add(&case, name, GUESTS, count);
        }
        Ok(())
    }

    /// Starts one more guest, and waits until it has used its memory and idles. Returns the guest if
    /// it fits. It fits if the limit is not exceeded and no process was killed. Records the guest's
    /// figures if a case is given.
    fn start(
        &mut self,
        subject: Subject,
        number: usize,
        cgroup: Option<&Cgroup>,
        running: &[Vm],
        case: Option<&str>,
    ) -> Result<Option<Vm>> {
        let mut config = self.config(subject, number)?;
        if cgroup.is_none() {
            // Without a cgroup the real host must not run out of memory.
            let available = host::available_memory().unwrap_or(Bytes(u64::MAX));
            let used = used(None, running).unwrap_or_default();
            if used + self.args.guest > self.args.host || available < self.args.guest {
                return Ok(None);
            }
        } else {
            config.cgroup = cgroup.map(Cgroup::procs_file).transpose()?;
        }
        let killed_before = cgroup.map_or(0, Cgroup::killed);
        let is_full = |running: &[Vm]| {
            let used = used(cgroup, running).unwrap_or_default();
            cgroup.map_or(0, Cgroup::killed) > killed_before || used > self.args.host
        };
        let UsedGuest { vm, samples, freed_at, freed } = match self.use_memory(&config) {
            Ok(guest) => guest,
            Err(Error::Ended { .. } | Error::Hang { .. } | Error::Monitor(_))
                if is_full(running) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        if is_full(running) {
            return Ok(None);
        }
        check_freed(self.memory_to_use(number), freed)
            .with_context(|| format!("guest {number}"))?;
        if let Some(case) = case {
            let name = subject.name();
            if let Some(time) = resident::time_to_return(&samples, freed_at) {
                self.sample.add(case, name, SETTLE_TIME, time.as_secs_f64());
            }
            if let Some(held) = resident::proportional(vm.pid()) {
                self.sample.add(
                    case,
                    name,
                    RESIDENT_AFTER_FREE,
                    held.0 as f64 / f64::from(1 << 20),
                );
            }
            if number == 0
                && let Some(idle) = cpu_use(vm.pid(), self.args.limit)
            {
                idle.into_iter().for_each(|idle| self.sample.add(case, name, IDLE, idle));
            }
        }
        Ok(Some(vm))
    }

    /// Boots a guest, and waits until it has used and freed its memory and its resident memory no
    /// longer changes.
    fn use_memory(&self, config: &Config) -> Result<UsedGuest, Error> {
        let mut vm = Vm::start(config)?;
        let sampler = Sampler::start(vm.pid(), POLL_INTERVAL);
        let (freed, since_start) = vm.wait("end of the guest's work", |event| match *event {
            Event::Freed { bytes, .. } => Some(Bytes(bytes)),
            _ => None,
        })?;
        let freed_at = vm.started() + since_start;
        // Wait until the resident memory has not shrunk for `SETTLED_AFTER`.
        let deadline = freed_at + Duration::from_secs(self.args.limit.into());
        let mut least = resident::resident(vm.pid()).unwrap_or_default();
        let mut last_change = Instant::now();
        while last_change.elapsed() < SETTLED_AFTER && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
            let Some(now) = resident::resident(vm.pid()) else { break };
            if now.0 + (2 << 20) <= least.0 {
                (least, last_change) = (now, Instant::now());
            }
        }
        Ok(UsedGuest { vm, samples: sampler.finish(), freed_at, freed })
    }

    /// Returns the memory that guest `number` must use. It is a whole number of MiB, because the
    /// guest that runs Linux counts in MiB.
    fn memory_to_use(&self, number: usize) -> Bytes {
        let guest = self.args.guest.0;
        let max = guest - guest / KERNEL_DIVISOR;
        Bytes(touched_memory(self.args.touch, number).0.min(max) >> 20 << 20)
    }

    /// Returns the configuration of guest `number`.
    fn config(&self, subject: Subject, number: usize) -> Result<Config> {
        let touched_bytes = self.memory_to_use(number).0;
        let config = self.guests.config(subject.guest(), Policy::OnlineMovable, Bytes::ZERO)?;
        // Writing and reading takes about 2 s for each GiB on an idle machine.
        let patience = config.patience + Duration::from_secs(touched_bytes >> 30) * 10;
        let config =
            config.with_guest_option("work", touched_bytes).with_guest_option("hold", "off");
        let balloon = match subject {
            Subject::NoReporting => Balloon::Plain,
            Subject::Hotmem | Subject::HotmemWithDescriptors | Subject::Linux => Balloon::Reports,
        };
        Ok(Config { balloon, patience, ..config })
    }
}

/// A guest that has used its memory and freed it.
struct UsedGuest {
    vm: Vm,
    samples: Vec<resident::Sample>,
    freed_at: Instant,
    /// The amount of memory that the guest says it has freed.
    freed: Bytes,
}

/// Checks that a guest has used and freed all memory that it had to use. If it used less, more
/// guests would fit.
fn check_freed(requested: Bytes, freed: Bytes) -> Result<()> {
    if freed != requested {
        bail!("the guest had to use {requested} of its memory, but used and freed {freed}");
    }
    Ok(())
}

/// Returns the memory that guest `number` touches. Consecutive guests touch five amounts from the
/// least to the most, repeatedly.
fn touched_memory((least, most): (Bytes, Bytes), number: usize) -> Bytes {
    Bytes(least.0 + (most.0 - least.0) / 4 * (number as u64 % 5))
}

/// Returns the memory that all guests hold.
fn used(cgroup: Option<&Cgroup>, running: &[Vm]) -> Option<Bytes> {
    match cgroup {
        Some(cgroup) => cgroup.used(),
        None => Some(
            running
                .iter()
                .filter_map(|vm| resident::proportional(vm.pid()))
                .fold(Bytes::ZERO, |sum, held| sum + held),
        ),
    }
}

/// Measures the CPU use of a process in percent of a CPU, five times in a row. The five
/// measurements take ten seconds, or `limit_s` seconds if that is less.
fn cpu_use(pid: u32, limit_s: u32) -> Option<Vec<f64>> {
    const MEASUREMENTS: u32 = 5;
    let time = Duration::from_secs(limit_s.min(10).into()) / MEASUREMENTS;
    let measure = |_| {
        let before = resident::cpu_time(pid)?;
        thread::sleep(time);
        let used = resident::cpu_time(pid)?.saturating_sub(before);
        Some(used.as_secs_f64() / time.as_secs_f64() * 100.0)
    };
    (0..MEASUREMENTS).map(measure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_touch_from_the_least_to_the_most() {
        let range = (Bytes::gib(4), Bytes::gib(5));
        let touched = [0, 2, 4, 5].map(|number| touched_memory(range, number));
        assert_eq!(touched, [Bytes::gib(4), Bytes::mib(4608), Bytes::gib(5), Bytes::gib(4)]);
    }

    #[test]
    fn a_guest_that_frees_another_amount_than_requested_is_an_error() {
        assert!(check_freed(Bytes::gib(4), Bytes::gib(4)).is_ok());
        for freed in [Bytes::ZERO, Bytes(Bytes::gib(4).0 - 4096), Bytes::gib(5)] {
            assert!(check_freed(Bytes::gib(4), freed).is_err());
        }
    }
}
