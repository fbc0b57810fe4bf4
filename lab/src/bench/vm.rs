//! `hotmem bench vm`: measures plugging and unplugging memory in guests under QEMU.

use super::{
    compare,
    record::{self, Metric, Sample},
};
use crate::{
    guest::{Guest, Guests, Machine, Policy},
    linux, progress,
    qemu::{Config, Event, Resize, Vm},
    size,
    table::time,
};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{
    fmt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Arguments of `hotmem bench vm`.
#[derive(clap::Args)]
pub struct Args {
    /// The sizes to plug [default: 16G,64G,256G,512G,4T; 16G,64G with Linux, which needs boot
    /// memory for descriptors]
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse)]
    sizes: Vec<Bytes>,
    /// The guests to measure, in turns
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem")]
    guests: Vec<Guest>,
    /// How plugged memory is brought online
    #[arg(long, value_enum, value_delimiter = ',', default_value = "online_movable")]
    policies: Vec<Policy>,
    /// Boots for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How much the guest writes to before memory in use is unplugged; 0: no memory in use is
    /// unplugged
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    touch: Bytes,
    /// What the guest does with memory in use when it is unplugged
    #[arg(long, value_enum, value_delimiter = ',', default_value = "checked,dropped,migrated")]
    used: Vec<Used>,
    /// How much is plugged into and unplugged from each guest before it is measured, because TCG is
    /// slow the first time that code runs; no more than half of what is measured [default: 2G where
    /// Linux is beside, so that kernels are compared; otherwise 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    warm_up: Option<Bytes>,
    /// The time limit of a step of Linux
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    machine: Machine,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What happens to memory in use when it is taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Used {
    /// The user reads all of it, and frees it
    Checked,
    /// The user frees it without reading it
    Dropped,
    /// The memory is copied to boot memory, the user's page tables are updated, and the old memory
    /// is freed. The guest has as much more boot memory
    Migrated,
}

/// From the request to the guest's own "done".
const TIME: Metric = ("time", "s");
/// From the request until the device has plugged or unplugged everything.
const DEVICE_TIME: Metric = ("device_time", "s");
/// The guest's instructions for the request.
const INSTRUCTIONS: Metric = ("instructions", "count");
/// What was still to be plugged or unplugged when the limit was reached.
const LEFT: Metric = ("left", "MiB");
/// Requests that the guest's driver made.
const REQUESTS: Metric = ("requests", "count");
/// What the guest read again before it gave the memory back.
const CHECKED: Metric = ("checked", "MiB");
/// What the guest copied elsewhere.
const MOVED: Metric = ("moved", "MiB");
/// From QEMU's start to the guest's first line.
const FIRST_LINE: Metric = ("first_line", "s");

/// The longest time, in a warm-up, between the device's completion and the guest's.
const SETTLED: Duration = Duration::from_millis(300);

/// What a guest needs at boot beside the memory that is migrated there.
const SPARE: Bytes = Bytes::mib(64);

/// Said where memory in use is migrated.
const MIGRATED: &str = "migrated: without a warm-up, in guests that have as much more memory at \
     boot for it to go to.";

/// Said where instructions are counted.
const COUNTING: &str = "linux: to 10 million, without the time that it waited. hotmem: to 1000, \
     the time that it waited for the device counted as instructions.";

/// Said where Linux is to leave memory offline.
const LINUX_OFFLINE: &str = "linux, offline: its virtio-mem driver would wait for somebody to bring \
     memory online as soon as 1 GiB is not, so it takes all in two blocks (force_bbm); guests are \
     warmed up with one of them; what is there is told by the number of memory blocks.";

pub(super) fn run(args: &Args) -> Result<()> {
    let sizes = args.sizes();
    let mut guests = args.machine.guests(&args.guests, &sizes)?;
    let mut sample = Sample::new("vm");
    sample.ran_on(guests.choose_accel()?.into());
    let mut bench = Bench { args, guests, sample, progress: progress::spinner() };
    for (size, policy) in sizes.iter().flat_map(|&s| args.policies.iter().map(move |&p| (s, p))) {
        for run in 1..=args.runs {
            for &guest in &args.guests {
                let case = format!("{}/{policy}", size::short(size));
                bench.progress.set_message(format!("{case}, {guest}, run {run} of {}", args.runs));
                let measured = bench.measure(guest, policy, size, &case);
                measured.with_context(|| format!("{case}, {guest}"))?;
            }
        }
    }
    bench.progress.finish_and_clear();
    let records = bench.sample.records();
    record::print(&records)?;
    if args.wanted_warm_up() != Bytes::ZERO {
        let warm_up = args.wanted_warm_up();
        say!("Each guest had been given and relieved of {warm_up} before, or half of the size.")?;
    }
    if args.touch != Bytes::ZERO && args.used.contains(&Used::Migrated) {
        say!("{MIGRATED}")?;
    }
    if args.is_beside_linux() {
        say!()?;
        compare::print(&records, args.metric(), LEFT)?;
        if args.machine.counts_instructions() {
            say!("{COUNTING}")?;
        } else {
            say!("A change of Linux's memory is seen up to {} late.", time(linux::LOOKS_EVERY))?;
        }
        if args.policies.contains(&Policy::Offline) {
            say!("{LINUX_OFFLINE}")?;
        }
    }
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

/// What is plugged, if nothing else is said.
const SIZES: [Bytes; 5] =
    [Bytes::gib(16), Bytes::gib(64), Bytes::gib(256), Bytes::gib(512), Bytes::tib(4)];
/// Of these, how many beside Linux: it describes no more than 64 GiB in its usual memory at boot.
const BESIDE_LINUX: usize = 2;
/// A warm-up beside Linux, if nothing else is said.
const WARM_UP: Bytes = Bytes::gib(2);

impl Args {
    fn is_beside_linux(&self) -> bool {
        self.guests.contains(&Guest::Linux)
    }

    fn sizes(&self) -> Vec<Bytes> {
        let usual = if self.is_beside_linux() { &SIZES[..BESIDE_LINUX] } else { &SIZES };
        if self.sizes.is_empty() { usual.to_vec() } else { self.sizes.clone() }
    }

    fn wanted_warm_up(&self) -> Bytes {
        self.warm_up.unwrap_or(if self.is_beside_linux() { WARM_UP } else { Bytes::ZERO })
    }

    /// Returns the warm-up of a guest that will be asked for `size`: never for all of that, or what
    /// it says of the warm-up would be taken for what is measured.
    fn warm_up(&self, policy: Policy, size: Bytes) -> Bytes {
        let half = Bytes(size.0 / 2);
        match self.wanted_warm_up() {
            Bytes::ZERO => Bytes::ZERO,
            // One of Linux's blocks.
            _ if policy == Policy::Offline => half,
            wanted => wanted.min(half),
        }
    }

    /// Returns what guests are compared by.
    fn metric(&self) -> Metric {
        if self.machine.counts_instructions() { INSTRUCTIONS } else { TIME }
    }
}

/// The state of a running bench.
struct Bench<'a> {
    args: &'a Args,
    guests: Guests,
    sample: Sample,
    progress: ProgressBar,
}

impl Bench<'_> {
    /// A boot in which nobody touches the memory, and one for each thing that can happen to memory
    /// in use.
    fn measure(&mut self, guest: Guest, policy: Policy, size: Bytes, case: &str) -> Result<()> {
        let config = self.guests.config(guest, policy, size)?;
        let warm_up = self.args.warm_up(policy, size);
        let mut vm = self.boot(guest, &config, warm_up)?;
        if self.resize(&mut vm, guest, size, &format!("{case}/plug"))? {
            self.resize(&mut vm, guest, Bytes::ZERO, &format!("{case}/unplug"))?;
        }
        drop(vm);

        let touch = self.args.touch.min(size);
        if touch == Bytes::ZERO || policy == Policy::Offline {
            return Ok(());
        }
        self.args.used.iter().try_for_each(|&used| {
            let case = format!("{case}/unplug-{}-{used}", size::short(touch));
            let warm_up = used.warm_up(warm_up);
            let mut vm = self.boot(guest, &used.config(guest, config.clone(), touch), warm_up)?;
            self.unplug_used(&mut vm, guest, used, (size, touch), &case)
        })
    }

    /// Plugs `size`, of which the guest uses `touch`, and takes all of it away.
    fn unplug_used(
        &mut self,
        vm: &mut Vm,
        guest: Guest,
        used: Used,
        (size, touch): (Bytes, Bytes),
        case: &str,
    ) -> Result<()> {
        if self.change(vm, guest, size)?.is_none() {
            return Ok(());
        }
        vm.wait("use of the memory", |event| used.is_in_use(guest, event).then_some(()))?;
        if !self.resize(vm, guest, Bytes::ZERO, case)? {
            return Ok(());
        }
        let Some(metric) = used.proof(guest) else { return Ok(()) };
        let (bytes, _) = vm.wait("what became of the memory", |event| used.bytes(event))?;
        ensure!(
            bytes >= touch.0 / 10 * 9,
            "{case}: {} of {touch} were {}",
            size::about(Bytes(bytes)),
            metric.0
        );
        self.sample.add(case, &guest.to_string(), metric, bytes as f64 / f64::from(1 << 20));
        Ok(())
    }

    fn boot(&mut self, guest: Guest, config: &Config, warm_up: Bytes) -> Result<Vm> {
        let mut vm = Vm::start(config)?;
        let first_line = vm.first_line()?;
        if guest == Guest::Hotmem && !self.args.machine.counts_instructions() {
            self.sample.add("boot", "hotmem", FIRST_LINE, first_line.as_secs_f64());
        }
        guest.ready(&mut vm)?;
        if warm_up != Bytes::ZERO {
            self.warm_up(&mut vm, warm_up)?;
        }
        Ok(vm)
    }

    /// What the guest says of it is left to be passed over by whoever waits for something else.
    fn warm_up(&self, vm: &mut Vm, size: Bytes) -> Result<()> {
        for target in [size, Bytes::ZERO] {
            let deadline = Instant::now() + Duration::from_secs(self.args.limit.into());
            vm.request(target)?;
            while vm.device_size()? != target {
                if Instant::now() > deadline {
                    bail!("warm-up: {target} are not reached in time");
                }
                thread::sleep(SETTLED / 10);
            }
            thread::sleep(SETTLED);
        }
        Ok(())
    }

    /// Changes the memory and records what that took. Returns whether it was done in time.
    fn resize(&mut self, vm: &mut Vm, guest: Guest, target: Bytes, case: &str) -> Result<bool> {
        let done = self.change(vm, guest, target)?;
        let subject = guest.to_string();
        let Some(resize) = done else {
            let left = vm.device_size()?.0.abs_diff(target.0) >> 20;
            self.sample.add_not_done(case, &subject, TIME, self.args.limit.into());
            self.sample.add(case, &subject, LEFT, left as f64);
            return Ok(false);
        };
        let mut add = |metric, value| self.sample.add(case, &subject, metric, value);
        if self.args.machine.counts_instructions() {
            add(INSTRUCTIONS, resize.in_guest.as_nanos() as f64);
        } else {
            add(TIME, resize.recognised.as_secs_f64());
            add(DEVICE_TIME, resize.device_done.as_secs_f64());
        }
        if guest.is_reference() {
            add(REQUESTS, resize.requests as f64);
        }
        Ok(true)
    }

    /// `None`: not within the limit.
    fn change(&self, vm: &mut Vm, guest: Guest, target: Bytes) -> Result<Option<Resize>> {
        Ok(match guest {
            Guest::Hotmem | Guest::Hotmem64 => Some(vm.resize(target)?),
            Guest::Linux => {
                vm.resize_within(target, Duration::from_secs(self.args.limit.into()))?
            }
        })
    }
}

impl Used {
    /// Returns a machine whose guest uses `touch` of what it is given.
    fn config(self, guest: Guest, config: Config, touch: Bytes) -> Config {
        match self {
            Used::Checked => config.touching(touch),
            Used::Dropped => config.touching(touch).with("release", "unchecked"),
            Used::Migrated => {
                let boot_memory = config.boot_memory + touch + SPARE;
                let config = Config { boot_memory, ..config.with("release", "off") };
                if guest == Guest::Linux {
                    return config.touching(touch);
                }
                // Its heap is what has page tables.
                config.touching(touch).with("touch", 0).with("heap", touch.0)
            }
        }
    }

    /// Returns what is on the heap when the warm-up ends has left the memory that is measured, and
    /// stays where it is.
    fn warm_up(self, wanted: Bytes) -> Bytes {
        if self == Used::Migrated { Bytes::ZERO } else { wanted }
    }

    /// Returns whether the memory is in use now.
    fn is_in_use(self, guest: Guest, event: &Event) -> bool {
        match event {
            Event::Heap { objects, .. } => guest.is_reference() && *objects > 0,
            Event::Touched { .. } => guest == Guest::Linux || self != Used::Migrated,
            _ => false,
        }
    }

    /// Returns what the guest says of it afterwards, if anything.
    fn proof(self, guest: Guest) -> Option<Metric> {
        match self {
            Used::Checked if guest.is_reference() => Some(CHECKED),
            Used::Checked | Used::Dropped => None,
            Used::Migrated => Some(MOVED),
        }
    }

    fn bytes(self, event: &Event) -> Option<u64> {
        match *event {
            Event::Verified { bytes } if self == Used::Checked => Some(bytes),
            Event::Heap { moved, .. } if self == Used::Migrated => Some(moved),
            _ => None,
        }
    }
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::parsed;

    #[test]
    fn memory_in_use_is_checked_dropped_or_migrated_and_a_guest_has_to_prove_it() {
        let config = |used: Used, guest| {
            let config = Config::new("guest".into(), Bytes::gib(4));
            used.config(guest, config, Bytes::gib(1))
        };
        let line = |used, guest| config(used, guest).append.join(" ");
        let touch = "hotmem.touch=1073741824";
        assert_eq!(line(Used::Checked, Guest::Hotmem), touch);
        assert_eq!(line(Used::Dropped, Guest::Linux), format!("{touch} hotmem.release=unchecked"));
        assert_eq!(line(Used::Migrated, Guest::Linux), format!("hotmem.release=off {touch}"));
        assert!(line(Used::Migrated, Guest::Hotmem64).ends_with("hotmem.heap=1073741824"));
        // Migrated memory needs room at boot.
        let migrating = config(Used::Migrated, Guest::Hotmem);
        assert!(migrating.boot_memory >= Bytes::mib(128 + 1024));

        let moved = Event::Heap { objects: 1, mapped: 7, moved: 5 };
        let verified = Event::Verified { bytes: 3 };
        assert_eq!(
            (Used::Migrated.bytes(&moved), Used::Migrated.bytes(&verified)),
            (Some(5), None)
        );
        assert_eq!((Used::Checked.bytes(&moved), Used::Checked.bytes(&verified)), (None, Some(3)));
        assert_eq!(Used::Migrated.proof(Guest::Linux), Some(MOVED));
        assert_eq!(Used::Checked.proof(Guest::Hotmem), Some(CHECKED));
        assert_eq!(Used::Dropped.proof(Guest::Hotmem), None);
    }

    fn args(line: &str) -> Args {
        parsed(&line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn beside_linux_sizes_are_what_it_can_be_given_and_guests_are_warmed_up() {
        let beside = args("--guests hotmem,linux");
        assert_eq!(beside.sizes(), [Bytes::gib(16), Bytes::gib(64)]);
        let usual = Bytes::gib(2);
        assert!(beside.sizes().iter().all(|&size| linux::Linux::least_boot_memory(size) <= usual));
        assert_eq!(beside.warm_up(Policy::OnlineMovable, Bytes::gib(64)), usual);
        let alone = args("");
        assert_eq!(alone.sizes().last(), Some(&Bytes::tib(4)));
        assert_eq!(alone.warm_up(Policy::OnlineMovable, Bytes::gib(64)), Bytes::ZERO);
        assert_eq!(alone.warm_up(Policy::Offline, Bytes::gib(64)), Bytes::ZERO);
    }

    #[test]
    fn a_warm_up_is_never_what_is_measured() {
        let args = args("--guests hotmem,linux --warm-up 2G");
        for gib in [1, 2, 4] {
            let (size, half) = (Bytes::gib(gib), Bytes(Bytes::gib(gib).0 / 2));
            assert_eq!(args.warm_up(Policy::OnlineMovable, size), half);
        }
        assert_eq!(args.warm_up(Policy::Offline, Bytes::gib(64)), Bytes::gib(32));
    }
}
