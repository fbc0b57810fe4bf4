//! `hotmem bench vm`: plugging and unplugging memory, boot after boot, guest after guest.

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
use anyhow::{Context, Result, bail};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Arguments of `hotmem bench vm`.
#[derive(clap::Args)]
pub struct Args {
    /// How much to plug
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse,
          default_value = "16G,64G,256G,512G,4T")]
    sizes: Vec<Bytes>,
    /// Who is measured, in turns
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem")]
    guests: Vec<Guest>,
    /// How plugged memory is brought online
    #[arg(long, value_enum, value_delimiter = ',', default_value = "online_movable")]
    policies: Vec<Policy>,
    /// Boots for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How much the guest writes to before memory is taken away that is in use; 0: nothing is
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    touch: Bytes,
    /// How much each guest is given and relieved of before it is measured, so that it has run that
    /// code before: QEMU's translator is slow the first time [default: 2G where Linux is beside,
    /// so that kernels are compared; otherwise 0]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    warm_up: Option<Bytes>,
    /// How long Linux may take for a step
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    machine: Machine,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
/// From QEMU's start to the guest's first line.
const FIRST_LINE: Metric = ("first_line", "s");

/// After which a guest is done with what its device was done with, in a warm-up.
const SETTLED: Duration = Duration::from_millis(300);

/// Said where instructions are counted.
const COUNTING: &str = "linux: to 10 million, without the time that it waited. hotmem: to 1000, \
     the time that it waited for the device counted as instructions.";

/// Said where Linux is to leave memory offline.
const LINUX_OFFLINE: &str = "linux, offline: its virtio-mem driver would wait for somebody to bring \
     memory online as soon as 1 GiB is not, so it takes all in two blocks (force_bbm); guests are \
     warmed up with one of them; what is there is told by the number of memory blocks.";

pub(super) fn run(args: &Args) -> Result<()> {
    let guests = args.machine.guests(&args.guests, &args.sizes)?;
    let mut bench =
        Bench { args, guests, sample: Sample::new("vm"), progress: progress::spinner() };
    for (size, policy) in
        args.sizes.iter().flat_map(|&s| args.policies.iter().map(move |&p| (s, p)))
    {
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
    record::print(&records);
    if args.warm_up() != Bytes::ZERO {
        println!("Each guest had been given and relieved of {} before.", args.warm_up());
    }
    if args.guests.contains(&Guest::Linux) {
        println!();
        compare::print(&records, args.metric(), LEFT);
        if args.machine.counts_instructions() {
            println!("{COUNTING}");
        } else {
            println!("A change of Linux's memory is seen up to {} late.", time(linux::LOOKS_EVERY));
        }
        if args.policies.contains(&Policy::Offline) {
            println!("{LINUX_OFFLINE}");
        }
    }
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

/// A warm-up beside Linux, if nothing else is said.
const WARM_UP: Bytes = Bytes::gib(2);

impl Args {
    fn warm_up(&self) -> Bytes {
        let beside_linux = self.guests.contains(&Guest::Linux);
        self.warm_up.unwrap_or(if beside_linux { WARM_UP } else { Bytes::ZERO })
    }

    /// What guests are compared by.
    fn metric(&self) -> Metric {
        if self.machine.counts_instructions() { INSTRUCTIONS } else { TIME }
    }
}

/// A bench under way.
struct Bench<'a> {
    args: &'a Args,
    guests: Guests,
    sample: Sample,
    progress: ProgressBar,
}

impl Bench<'_> {
    /// Two boots: in one nobody touches the memory, in the other the guest does.
    fn measure(&mut self, guest: Guest, policy: Policy, size: Bytes, case: &str) -> Result<()> {
        let config = self.guests.config(guest, policy, size)?;
        let warm_up = match self.args.warm_up() {
            // One of Linux's blocks. Not all: of that the guest will be asked.
            some if policy == Policy::Offline && some != Bytes::ZERO => Bytes(size.0 / 2),
            some => some,
        };
        let mut vm = self.boot(guest, &config, warm_up)?;
        if self.resize(&mut vm, guest, size, &format!("{case}/plug"))? {
            self.resize(&mut vm, guest, Bytes::ZERO, &format!("{case}/unplug"))?;
        }
        drop(vm);

        let touch = self.args.touch.min(size);
        if touch == Bytes::ZERO || policy == Policy::Offline {
            return Ok(());
        }
        let mut vm = self.boot(guest, &config.touching(touch), warm_up)?;
        if self.change(&mut vm, guest, size)?.is_some() {
            vm.wait("end of the touching", |event| {
                matches!(event, Event::Touched { .. }).then_some(())
            })?;
            let case = format!("{case}/unplug-touched-{}", size::short(touch));
            self.resize(&mut vm, guest, Bytes::ZERO, &case)?;
        }
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

    /// Changes the memory and records what that took; whether it was done in time.
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
