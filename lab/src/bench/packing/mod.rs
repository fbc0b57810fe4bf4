//! `hotmem bench packing`: counts how many guests fit on a host, if each uses its memory for a
//! while and then idles.

mod group;

use super::record::{self, Metric, Sample};
use crate::{
    guest::{Guest, Guests, Policy, Runner},
    progress,
    qemu::{Balloon, Config, Error, Event, Vm, host},
    resident::{self, Watch},
    size,
};
use anyhow::{Context, Result, bail};
use group::Group;
use hotmem::Bytes;
use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Arguments of `hotmem bench packing`.
#[derive(clap::Args)]
pub struct Args {
    /// The memory of the host, which is the limit of a memory cgroup. Where this process may not
    /// make one, the resident memory of all guests is compared with the limit
    #[arg(long, value_name = "SIZE", default_value = "15G", value_parser = size::parse)]
    host: Bytes,
    /// The memory of a guest
    #[arg(long, value_name = "SIZE", default_value = "5G", value_parser = size::parse)]
    guest: Bytes,
    /// How much the guests write to, from the least to the most: `4G..5G`
    #[arg(long, value_name = "SIZE..SIZE", default_value = "4G..5G", value_parser = parse_span)]
    touch: (Bytes, Bytes),
    /// The guests to pack, one kind after the other; hotmem is packed with and without reports
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem-64B,linux,hotmem")]
    guests: Vec<Guest>,
    /// The maximal number of guests
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_guests: u32,
    /// The time limit for a guest to give its memory back
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    runner: Runner,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The number of guests that ran at the same time.
const GUESTS: Metric = ("guests", "count");
/// The resident memory of a guest's QEMU after the guest gave its memory back, including its share
/// of shared memory.
const RESIDUAL: Metric = ("residual", "MiB");
/// What all guests hold together.
const HELD: Metric = ("held", "MiB");
/// The time since the guest freed its memory.
const SETTLE: Metric = ("settle", "s");
/// The CPU use of an idle guest.
const IDLE: Metric = ("idle", "%");

/// The time between two reads of a guest's resident memory.
const LOOK: Duration = Duration::from_millis(20);
/// A guest has settled when its resident memory has not changed for this long.
const STEADY: Duration = Duration::from_secs(3);
/// The least memory that a kernel keeps for itself when its guest uses all of its memory.
const KERNEL: u64 = 12;

const NOTE: &str = "A host is a memory cgroup. One that is simulated is a limit on the sum of what \
     the guests' processes hold. hotmem-64B writes a descriptor of 64 bytes for each frame, as linux \
     does; hotmem writes none, and hotmem-no-reports is the same guest without reports.";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The reference guest without reports.
    Silent,
    Hotmem,
    Hotmem64,
    Linux,
}

pub(super) fn run(args: &Args) -> Result<()> {
    if args.guest > args.host {
        bail!("--guest {}: more than the host's {}", args.guest, args.host);
    }
    if args.touch.1 > args.guest {
        bail!("--touch: up to {}, more than a guest's {}", args.touch.1, args.guest);
    }
    let mut sample = Sample::new("packing");
    let packed = each(subjects(&args.guests), |subject| {
        let mut guests = args.runner.guests(&[subject.guest()], args.guest)?;
        sample.ran_on(guests.choose_accel()?.into());
        Bench { args, guests, sample: &mut sample }.pack(subject)
    });
    let records = sample.records();
    record::print(&records)?;
    say!("{NOTE}")?;
    let written = args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path));
    packed.and(written)
}

/// Packs guests of each subject, even if others fail.
///
/// # Errors
/// The subjects that failed, and the reasons. Figures from before the failure are kept.
fn each(subjects: Vec<Subject>, mut pack: impl FnMut(Subject) -> Result<()>) -> Result<()> {
    let failed = subjects.into_iter().filter_map(|subject| {
        let error = pack(subject).err()?;
        Some(format!("packing {}: {error:#}", subject.name()))
    });
    let failed: Vec<_> = failed.collect();
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

impl Args {
    /// Returns a host and its guests.
    fn case(&self, is_real: bool) -> String {
        let simulated = if is_real { "" } else { "-simulated" };
        format!("{}{simulated}/{}", size::short(self.host), size::short(self.guest))
    }
}

fn subjects(guests: &[Guest]) -> Vec<Subject> {
    let subjects = guests.iter().flat_map(|guest| match guest {
        Guest::Hotmem => &[Subject::Silent, Subject::Hotmem][..],
        Guest::Hotmem64 => &[Subject::Hotmem64],
        Guest::Linux => &[Subject::Linux],
    });
    subjects.copied().collect()
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Silent => "hotmem-no-reports",
            Subject::Hotmem => "hotmem",
            Subject::Hotmem64 => "hotmem-64B",
            Subject::Linux => "linux",
        }
    }

    fn guest(self) -> Guest {
        match self {
            Subject::Silent | Subject::Hotmem => Guest::Hotmem,
            Subject::Hotmem64 => Guest::Hotmem64,
            Subject::Linux => Guest::Linux,
        }
    }
}

struct Bench<'a> {
    args: &'a Args,
    guests: Guests,
    sample: &'a mut Sample,
}

impl Bench<'_> {
    /// A warm-up, then guest after guest, until the next one does not fit.
    fn pack(&mut self, subject: Subject) -> Result<()> {
        let group = Group::new(self.args.host);
        let case = self.args.case(group.is_some());
        let bar = progress::bar(self.args.max_guests.into());
        bar.set_message(format!("{}: warming up", subject.name()));
        if self.start(subject, 0, group.as_ref(), &[], None)?.is_none() {
            bail!("not even one guest fits");
        }
        let mut running: Vec<Vm> = Vec::new();
        while running.len() < self.args.max_guests as usize {
            let number = running.len();
            let used = used(group.as_ref(), &running);
            let held = size::about(used.unwrap_or_default());
            let (name, limit) = (subject.name(), self.args.host);
            bar.set_message(format!("{name}: {number} guests hold {held} of {limit}"));
            match self.start(subject, number, group.as_ref(), &running, Some(&case))? {
                Some(vm) => running.push(vm),
                None => break,
            }
            if let Some(held) = self::used(group.as_ref(), &running) {
                let case = format!("{case}/after-guest-{}", running.len());
                self.sample.add(&case, name, HELD, held.0 as f64 / f64::from(1 << 20));
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let (name, count) = (subject.name(), running.len() as f64);
        if running.len() == self.args.max_guests as usize {
            self.sample.add_not_done(&case, name, GUESTS, count);
        } else {
            self.sample.add(&case, name, GUESTS, count);
        }
        Ok(())
    }

    /// Starts one more guest. Returns it if it fits: it has used its memory and idles, and no other
    /// process was killed. Its figures are recorded where a case is given.
    fn start(
        &mut self,
        subject: Subject,
        number: usize,
        group: Option<&Group>,
        running: &[Vm],
        case: Option<&str>,
    ) -> Result<Option<Vm>> {
        let mut config = self.config(subject, number)?;
        if group.is_none() {
            // Without a group the host must not run out of memory.
            let left = host::available_memory().unwrap_or(Bytes(u64::MAX));
            let used = used(None, running).unwrap_or_default();
            if used + self.args.guest > self.args.host || left < self.args.guest {
                return Ok(None);
            }
        } else {
            config.group = group.map(Group::procs_file).transpose()?;
        }
        let killed = group.map_or(0, Group::killed);
        let is_full = |running: &[Vm]| {
            let used = used(group, running).unwrap_or_default();
            group.map_or(0, Group::killed) > killed || used > self.args.host
        };
        let Used { vm, samples, freed_at, freed } = match self.use_memory(&config) {
            Ok(used) => used,
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
        check_freed(self.work(number), freed).with_context(|| format!("guest {number}"))?;
        if let Some(case) = case {
            let name = subject.name();
            if let Some(settled) = resident::settled(&samples, freed_at) {
                self.sample.add(case, name, SETTLE, settled.as_secs_f64());
            }
            if let Some(held) = resident::proportional(vm.pid()) {
                self.sample.add(case, name, RESIDUAL, held.0 as f64 / f64::from(1 << 20));
            }
            if number == 0
                && let Some(idle) = idle(vm.pid(), self.args.limit)
            {
                idle.into_iter().for_each(|idle| self.sample.add(case, name, IDLE, idle));
            }
        }
        Ok(Some(vm))
    }

    /// Boots a guest, and waits until it has used and freed its memory and its resident memory no
    /// longer changes.
    fn use_memory(&self, config: &Config) -> Result<Used, Error> {
        let mut vm = Vm::start(config)?;
        let watch = Watch::start(vm.pid(), LOOK);
        let (freed, since_start) = vm.wait("end of the guest's work", |event| match *event {
            Event::Freed { bytes, .. } => Some(Bytes(bytes)),
            _ => None,
        })?;
        let freed_at = vm.started() + since_start;
        // This loop ends when the resident memory no longer changes.
        let end = freed_at + Duration::from_secs(self.args.limit.into());
        let mut least = resident::resident(vm.pid()).unwrap_or_default();
        let mut since = Instant::now();
        while since.elapsed() < STEADY && Instant::now() < end {
            thread::sleep(LOOK);
            let Some(now) = resident::resident(vm.pid()) else { break };
            if now.0 + (2 << 20) <= least.0 {
                (least, since) = (now, Instant::now());
            }
        }
        Ok(Used { vm, samples: watch.finish(), freed_at, freed })
    }

    /// Returns what guest `number` is to use: whole MiB, as Linux's guest counts.
    fn work(&self, number: usize) -> Bytes {
        let guest = self.args.guest.0;
        let most = guest - guest / KERNEL;
        Bytes(work(self.args.touch, number).0.min(most) >> 20 << 20)
    }

    fn config(&self, subject: Subject, number: usize) -> Result<Config> {
        let work = self.work(number).0;
        let config = self.guests.config(subject.guest(), Policy::OnlineMovable, Bytes::ZERO)?;
        // Some 2 s a GiB on an idle machine, written and read.
        let patience = config.patience + Duration::from_secs(work >> 30) * 10;
        let config = config.with("work", work).with("hold", "off");
        let balloon = match subject {
            Subject::Silent => Balloon::Plain,
            Subject::Hotmem | Subject::Hotmem64 | Subject::Linux => Balloon::Reports,
        };
        Ok(Config { balloon, patience, ..config })
    }
}

/// A guest that has used its memory and freed it.
struct Used {
    vm: Vm,
    samples: Vec<resident::Sample>,
    freed_at: Instant,
    freed: Bytes,
}

/// Whether a guest has used and freed what it was to use: one that did less would be easy to pack.
fn check_freed(work: Bytes, freed: Bytes) -> Result<()> {
    if freed != work {
        bail!("it was to use {work} of its memory, and used and freed {freed}");
    }
    Ok(())
}

/// Returns what guest `number` touches: five steps from the least to the most, again and again.
fn work((least, most): (Bytes, Bytes), number: usize) -> Bytes {
    Bytes(least.0 + (most.0 - least.0) / 4 * (number as u64 % 5))
}

/// Returns what all guests hold.
fn used(group: Option<&Group>, running: &[Vm]) -> Option<Bytes> {
    match group {
        Some(group) => group.used(),
        None => Some(
            running
                .iter()
                .filter_map(|vm| resident::proportional(vm.pid()))
                .fold(Bytes::ZERO, |sum, held| sum + held),
        ),
    }
}

/// Returns what a process takes of a core, in percent, in each part of ten seconds or the limit.
fn idle(pid: u32, limit: u32) -> Option<Vec<f64>> {
    const PARTS: u32 = 5;
    let time = Duration::from_secs(limit.min(10).into()) / PARTS;
    let part = |_| {
        let before = resident::cpu_time(pid)?;
        thread::sleep(time);
        let used = resident::cpu_time(pid)?.saturating_sub(before);
        Some(used.as_secs_f64() / time.as_secs_f64() * 100.0)
    };
    (0..PARTS).map(part).collect()
}

/// Two sizes with `..` between, or one.
fn parse_span(text: &str) -> Result<(Bytes, Bytes), String> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let (least, most) = (size::parse(least)?, size::parse(most)?);
    if least > most || least == Bytes::ZERO {
        return Err(format!("{text}: from the least to the most, such as 4G..5G"));
    }
    Ok((least, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parsed;

    #[test]
    fn spans_of_sizes() {
        let gib = |n| Bytes::gib(n);
        assert_eq!(parse_span("4G..5G"), Ok((gib(4), gib(5))));
        assert_eq!(parse_span("4G"), Ok((gib(4), gib(4))));
        for bad in ["5G..4G", "..5G", "4G..", "0..1G", ""] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn guests_touch_from_the_least_to_the_most() {
        let span = (Bytes::gib(4), Bytes::gib(5));
        let works = [0, 2, 4, 5].map(|number| work(span, number));
        assert_eq!(works, [Bytes::gib(4), Bytes::mib(4608), Bytes::gib(5), Bytes::gib(4)]);
    }

    #[test]
    fn a_guest_that_uses_less_than_it_was_to_is_refused() {
        assert!(check_freed(Bytes::gib(4), Bytes::gib(4)).is_ok());
        for freed in [Bytes::ZERO, Bytes(Bytes::gib(4).0 - 4096), Bytes::gib(5)] {
            assert!(check_freed(Bytes::gib(4), freed).is_err());
        }
    }

    #[test]
    fn what_fails_for_one_subject_is_named_and_the_others_are_packed() {
        let (mut packed, all) = (Vec::new(), || vec![Subject::Linux, Subject::Hotmem64]);
        let failed = each(all(), |subject| {
            packed.push(subject.name());
            if subject == Subject::Linux { bail!("no Linux") } else { Ok(()) }
        });
        assert_eq!(packed, ["linux", "hotmem-64B"]);
        assert_eq!(failed.unwrap_err().to_string(), "packing linux: no Linux");
        assert!(each(all(), |_| Ok(())).is_ok());
        let failed = each(all(), |_| bail!("killed")).unwrap_err().to_string();
        assert_eq!(failed, "packing linux: killed; packing hotmem-64B: killed");
    }

    #[test]
    fn by_default_guests_with_descriptors_are_packed_too() {
        let args: Args = parsed(&[""; 0]);
        let names: Vec<_> = subjects(&args.guests).into_iter().map(Subject::name).collect();
        assert_eq!(names, ["hotmem-64B", "linux", "hotmem-no-reports", "hotmem"]);
    }

    #[test]
    fn a_host_that_is_simulated_is_called_so() {
        let args: Args = parsed(&["--host", "6G", "--guest", "2G"]);
        assert_eq!(args.case(true), "6G/2G");
        assert_eq!(args.case(false), "6G-simulated/2G");
    }
}
