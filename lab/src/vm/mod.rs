//! `hotmem vm`: boots one guest and shows how its memory changes.

pub mod rows;

#[cfg(feature = "live")]
use crate::live::Live;
use crate::{
    guest::{Guest, Guests, Machine, Policy},
    plot, progress, pseries,
    qemu::{Balloon, Config, Event, Vm},
    resident::{self, Watch},
    size,
    table::time,
};
use anyhow::{Result, bail};
use hotmem::Bytes;
use indicatif::ProgressBar;
use rows::{Row, Took};
use std::{path::PathBuf, thread, time::Duration};

/// The time between two reads of the guest's resident memory.
const LOOK: Duration = Duration::from_millis(20);

/// A type of machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Arch {
    /// A PC with a virtio-mem device
    #[default]
    X86,
    /// QEMU's pseries machine, to which memory is added as DIMMs
    Pseries,
}

/// Arguments of `hotmem vm`.
#[derive(clap::Args)]
pub struct Args {
    /// The machine to boot
    #[arg(long, value_enum, default_value_t)]
    arch: Arch,
    /// The guest to boot
    #[arg(long, value_enum, default_value_t)]
    guest: Guest,
    /// Memory to plug while the guest runs
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    plug: Bytes,
    /// How plugged memory is brought online
    #[arg(long, value_enum, default_value_t)]
    policy: Policy,
    /// Memory that the guest writes to, and reads again before it frees it
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    touch: Option<Bytes>,
    /// Unplug the memory at the end
    #[arg(long)]
    unplug: bool,
    /// Unplug the memory and plug it a second time
    #[arg(long)]
    replug: bool,
    /// Give the guest a balloon to which it reports free memory, let it free what it wrote to, and
    /// plot its resident memory on the host
    #[arg(long)]
    balloon: bool,
    /// The file to which the plot is written as SVG
    #[arg(long, value_name = "FILE", requires = "balloon")]
    svg: Option<PathBuf>,
    /// The device's block size
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = size::parse)]
    block_size: Bytes,
    /// The time limit of a step of Linux
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Show no live view of the memory in a terminal
    #[arg(long)]
    plain: bool,
    #[command(flatten)]
    machine: Machine,
}

/// Boots the guest, changes its memory, and prints the time of each step.
///
/// # Errors
/// A [`crate::qemu::Error`], or arguments that contradict each other.
pub fn run(args: &Args) -> Result<()> {
    if args.arch == Arch::Pseries {
        return args.run_pseries();
    }
    args.check()?;
    let progress = progress::spinner();
    progress.set_message("looking for the guest's image");
    let guests = progress.suspend(|| args.machine.guests(&[args.guest], &[args.plug]))?;
    progress.set_message("booting");
    let mut vm = Vm::start(&args.config(&guests)?)?;
    let shown = Shown::start(args.plain, progress, &mut vm);
    let first_line = vm.first_line()?;
    args.guest.ready(&mut vm)?;
    let watch = args.balloon.then(|| Watch::start(vm.pid(), LOOK));
    let rows = args.change_memory(&mut vm, &shown)?;
    let started = vm.started();
    let samples = watch.map(Watch::finish);
    let metadata = match args.guest {
        Guest::Hotmem | Guest::Hotmem64 => Some(args.leave(vm)?),
        Guest::Linux => None,
    };
    shown.finish();

    let boot_memory = guests.boot_memory();
    say!("guest of {boot_memory}, first line {} after QEMU's start", time(first_line))?;
    rows::print(&rows, args.limit)?;
    if let Some(samples) = samples {
        args.plot(&resident::series(&samples, started))?;
    }
    if let Some(Some(written)) = metadata {
        let plugs = rows.iter().filter(|row| row.step.starts_with("plug"));
        let grown: u64 = plugs.map(|row| row.memory.0).sum();
        let percent = written.0 as f64 / grown as f64 * 100.0;
        say!("metadata written: {}, {percent:.6} % of what was plugged", size::about(written))?;
    }
    if args.machine.counts_instructions() {
        say!("in the guest, 1 ns is one instruction")?;
    }
    if metadata.is_some() {
        say!("the guest's own checks: PASS")?;
    }
    Ok(())
}

/// The display of the run's progress.
enum Shown {
    /// A view of the memory.
    #[cfg(feature = "live")]
    Live(Live),
    /// A spinner with the current step, in a terminal; otherwise nothing.
    Plain(ProgressBar),
}

impl Shown {
    #[cfg_attr(not(feature = "live"), expect(unused_variables, reason = "there is no view"))]
    fn start(plain: bool, progress: ProgressBar, vm: &mut Vm) -> Shown {
        #[cfg(feature = "live")]
        if !plain {
            // The view and the spinner draw in the same lines.
            progress.finish_and_clear();
            return match Live::start(vm) {
                Some(live) => Shown::Live(live),
                None => Shown::Plain(progress::spinner()),
            };
        }
        Shown::Plain(progress)
    }

    fn set_message(&self, step: impl Into<String>) {
        match self {
            #[cfg(feature = "live")]
            Shown::Live(live) => live.step(&step.into()),
            Shown::Plain(progress) => progress.set_message(step.into()),
        }
    }

    fn finish(self) {
        match self {
            #[cfg(feature = "live")]
            Shown::Live(_) => {}
            Shown::Plain(progress) => progress.finish_and_clear(),
        }
    }
}

impl Args {
    fn run_pseries(&self) -> Result<()> {
        if self.guest != Guest::Hotmem {
            bail!("--guest {}: on pseries the reference guest boots", self.guest);
        }
        if self.balloon {
            bail!("--balloon: not on pseries");
        }
        if self.touch.is_some_and(|touch| touch > self.plug) {
            bail!("--touch: more than the {} that are plugged", self.plug);
        }
        let online = match self.policy {
            Policy::Offline => "offline",
            Policy::Online | Policy::OnlineMovable => "movable",
            Policy::OnlineKernel => "kernel",
        };
        let plan = pseries::watch::Plan {
            image: self.machine.image().map(Into::into),
            boot_memory: self.machine.boot_memory_or(Bytes::gib(1)),
            plug: self.plug,
            touch: self.touched(),
            online,
            steps: self.resizes(),
            icount: self.machine.counts_instructions(),
        };
        let progress = progress::spinner();
        progress.set_message("looking for the guest's image");
        let (ready, rows) =
            pseries::watch::run(&plan, |step| progress.set_message(step.to_owned()))?;
        progress.finish_and_clear();
        say!("guest of {}, ready {} after QEMU's start", plan.boot_memory, time(ready))?;
        rows::print(&rows, self.limit)?;
        if plan.icount {
            say!("in the guest, 1 ns is one instruction")?;
        }
        say!("the guest's own checks: PASS")?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        if !self.block_size.0.is_power_of_two() {
            bail!("--block-size {}: a block size is a power of two", self.block_size);
        }
        if self.plug == Bytes::ZERO || !self.plug.0.is_multiple_of(self.block_size.0) {
            bail!("--plug {}: plugs whole blocks of {}", self.plug, self.block_size);
        }
        if self.balloon && (self.guest == Guest::Linux || self.touched().is_none()) {
            bail!("--balloon: shows what the reference guest gives back of what it --touch'es");
        }
        if self.touch.is_some_and(|touch| touch > self.plug) {
            bail!("--touch: more than the {} that are plugged", self.plug);
        }
        Ok(())
    }

    fn config(&self, guests: &Guests) -> Result<Config> {
        let mut config = guests.config(self.guest, self.policy, self.plug)?;
        if self.guest.is_reference() {
            config = config.with("exit", format!("resizes:{}", self.resizes() + 1));
        }
        if let Some(size) = self.touched() {
            config = config.touching(size);
        }
        if self.balloon {
            config = Config { balloon: Balloon::Reports, ..config.with("hold", "off") };
        }
        Ok(Config { block_size: self.block_size, ..config })
    }

    /// Returns the size of the memory that the guest is to write to, if any.
    fn touched(&self) -> Option<Bytes> {
        self.touch.filter(|&size| size > Bytes::ZERO)
    }

    /// Returns the number of changes of the guest's memory before [`Args::leave`].
    fn resizes(&self) -> u32 {
        if self.replug { 3 } else { 1 + u32::from(self.unplug) }
    }

    fn change_memory(&self, vm: &mut Vm, progress: &Shown) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let steps = [("plug", self.plug), ("unplug", Bytes::ZERO), ("plug again", self.plug)];
        for &(step, target) in steps.iter().take(self.resizes() as usize) {
            progress.set_message(format!("{step} {}", self.plug));
            let done = match self.guest {
                Guest::Hotmem | Guest::Hotmem64 => Some(vm.resize(target)?),
                Guest::Linux => vm.resize_within(target, Duration::from_secs(self.limit.into()))?,
            };
            let Some(resize) = done else {
                let took = Took::NotDone(vm.device_size()?);
                rows.push(Row { step, memory: self.plug, took });
                break;
            };
            rows.push(Row { step, memory: self.plug, took: Took::Resize(resize) });
            if target != Bytes::ZERO && self.touched().is_some() {
                progress.set_message("the guest writes to its new memory");
                let (row, _) = vm.wait("end of the touching", |event| match *event {
                    Event::Touched { bytes, us } => Some(Row {
                        step: "touch",
                        memory: Bytes(bytes),
                        took: Took::InGuest(Duration::from_micros(us)),
                    }),
                    _ => None,
                })?;
                rows.push(row);
                if self.balloon {
                    progress.set_message("the guest frees it, and the host has it back");
                    rows.push(self.give_back(vm)?);
                }
            }
        }
        Ok(rows)
    }

    /// Waits until the guest has freed what it wrote to, and has reported all of it.
    fn give_back(&self, vm: &mut Vm) -> Result<Row> {
        let (memory, freed) = vm.wait("end of the guest's work", |event| match *event {
            Event::Freed { bytes, .. } => Some(Bytes(bytes)),
            _ => None,
        })?;
        let ((), reported) = vm.wait("end of the reports", |event| {
            matches!(event, Event::Reported { .. }).then_some(())
        })?;
        // The last second of the plot shows the final state.
        thread::sleep(Duration::from_secs(1));
        let took = Took::InGuest(reported.saturating_sub(freed));
        Ok(Row { step: "give back", memory, took })
    }

    /// Plots the guest's resident memory on the host, in the terminal and as SVG.
    fn plot(&self, series: &plot::Series) -> Result<()> {
        say!("resident on the host, GiB")?;
        crate::out::write(format_args!("{}", plot::text(series, "GiB")))?;
        self.svg
            .as_deref()
            .map_or(Ok(()), |path| plot::svg(series, "resident on the host", "GiB", path))
    }

    /// Changes the memory a last time. The guest ends by itself after that, so that QEMU does not
    /// end while a step is timed. Returns how much metadata the guest wrote, if it reports that.
    fn leave(&self, mut vm: Vm) -> Result<Option<Bytes>> {
        let plugged = vm.device_size()?;
        vm.request(if plugged == Bytes::ZERO { self.block_size } else { Bytes::ZERO })?;
        Ok(vm.finish()?)
    }
}
