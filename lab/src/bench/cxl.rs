//! `hotmem bench cxl`: measures how long each guest takes to make the memory of CXL devices RAM, and
//! device memory again.
//!
//! Linux does it by daxctl, as an administrator does. Its time contains the start of that program, which
//! the reference guest does not have: it takes commands. Where the kernel leaves memory offline, daxctl
//! puts it online, and so the reference guest is told to.

#[cfg(feature = "report")]
pub(crate) mod section;

use super::failures::{Failures, PeerStep};
use super::measure::Measure;
use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::{
    guest::{Guest, Policy},
    linux::{DESCRIPTOR, Drivers, Linux},
    progress,
    qemu::{Accel, Architecture, Config, Cxl, Emulator, Event, Vm, host, image},
    size,
};
use anyhow::{Context, Result, bail, ensure};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{path::PathBuf, time::Duration};

/// The name of the bench in its records.
const NAME: &str = "cxl";

/// Arguments of `hotmem bench cxl`.
#[derive(clap::Args)]
pub struct Args {
    /// The numbers of devices, between which addresses alternate
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "2,4",
          value_parser = clap::value_parser!(u8).range(1..=4))]
    devices: Vec<u8>,
    /// The size of each device: whole 256 MiB
    #[arg(long, value_name = "SIZE", default_value = "128G", value_parser = size::parse)]
    size: Bytes,
    /// The policies by which RAM is brought online
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "online,online_movable,offline"
    )]
    policies: Vec<Policy>,
    /// The guests to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem")]
    guests: Vec<Guest>,
    /// What to measure: the time by the guest's clock, or the guest's instructions, whose count takes
    /// long
    #[arg(long, value_enum, value_delimiter = ',', default_value = "time,instructions")]
    measures: Vec<Measure>,
    /// The number of runs for each median of time
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The number of runs of Linux, each of which may take minutes
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    linux_rounds: u32,
    /// The time limit of a step of Linux, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The reference guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

const TIME: Metric = ("time", "s");
const INSTRUCTIONS: Metric = ("instructions", "count");

/// The boot memory of Linux without the descriptors of the devices' memory. With 768 MiB, Linux sometimes
/// kills daxctl for want of memory while it adds 512 GiB.
const LINUX_MEMORY: Bytes = Bytes::gib(2);
/// The size of the memory blocks of Linux on a machine that is not virtual. Parts of blocks at both ends of
/// the memory do not become RAM.
const LINUX_BLOCK: Bytes = Bytes::gib(2);
/// Linux commits no decoders on a virtual machine, where it cannot empty the caches of the host.
const LINUX_CPU: &str = "max,phys-bits=46,-erms,-hypervisor";

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| Ok(record::print(records)?);
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases. If Linux fails in some, returns the reasons after the last.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    if args.guests.contains(&Guest::HotmemWithDescriptors) {
        bail!("--guests {} is not a guest of this bench", Guest::HotmemWithDescriptors);
    }
    if args.size == Bytes::ZERO || !args.size.0.is_multiple_of(256 << 20) {
        bail!("--size {}: the size of a device is whole 256 MiB", args.size);
    }
    if args.devices.contains(&3) {
        bail!("--devices 3: addresses alternate between 1, 2 or 4 devices");
    }
    let has = |guest| args.guests.contains(&guest);
    let image = has(Guest::Hotmem).then(|| image::find(args.guest_image.as_deref())).transpose()?;
    let linux = has(Guest::Linux).then(|| Linux::find(Architecture::X86_64, Drivers::Cxl));
    let linux = linux.transpose()?;
    sample.set_executor(Accel::Tcg.into());
    let progress = progress::spinner();
    let mut failures = Failures::default();
    for case in args.cases() {
        if let Some(image) = &image {
            let measured = case.measure_hotmem(Config::new(image.clone(), Bytes::ZERO), sample);
            measured.with_context(|| format!("{}, hotmem", case.name()))?;
        }
        if let Some(linux) = &linux {
            case.measure_linux(linux, sample, &mut failures, &progress);
        }
    }
    progress.finish_and_clear();
    failures.into_result()
}

impl Args {
    fn cases(&self) -> impl Iterator<Item = Case<'_>> {
        let policies = self
            .devices
            .iter()
            .flat_map(|&devices| self.policies.iter().map(move |&policy| (devices, policy)));
        policies.flat_map(move |(devices, policy)| {
            let case = move |&measure| Case { args: self, devices, policy, measure };
            self.measures.iter().map(case)
        })
    }
}

/// Some devices, whose memory is made RAM by a policy.
struct Case<'a> {
    args: &'a Args,
    devices: u8,
    policy: Policy,
    measure: Measure,
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("{}x{}/{}", self.devices, self.args.size, self.policy)
    }

    fn sizes(&self) -> Vec<Bytes> {
        vec![self.args.size; self.devices.into()]
    }

    fn size(&self) -> Bytes {
        Bytes(self.args.size.0 * u64::from(self.devices))
    }

    fn counts(&self) -> bool {
        self.measure == Measure::Instructions
    }

    fn rounds(&self, guest: Guest) -> u32 {
        match guest {
            // Instructions vary little.
            _ if self.counts() => 1,
            Guest::Linux => self.args.linux_rounds,
            _ => self.args.rounds,
        }
    }

    fn metric(&self) -> Metric {
        if self.counts() { INSTRUCTIONS } else { TIME }
    }

    /// Adds a time by the guest's clock. Where instructions are counted, one takes a nanosecond.
    fn add(&self, sample: &mut Sample, step: &str, guest: Guest, time: Duration) {
        let value = if self.counts() { time.as_nanos() as f64 } else { time.as_secs_f64() };
        sample.add(&format!("{}/{step}", self.name()), &guest.to_string(), self.metric(), value);
    }

    fn measure_hotmem(&self, config: Config, sample: &mut Sample) -> Result<()> {
        let config = config.with_reconfigurable_cxl(&self.sizes());
        let config = config.context("this needs QEMU 10: `cargo xtask setup`")?.with_commands();
        let config = Config { icount: self.counts(), ..config };
        host::ensure_available(config.host_memory())?;
        let mut vm = Vm::start(&config)?;
        vm.wait_for_cxl()?;
        for _ in 0..self.rounds(Guest::Hotmem) {
            let mut time = vm.reconfigure(&format!("system-ram 0 {}", self.policy))?.time;
            if self.policy == Policy::Offline {
                time += vm.reconfigure("system-ram 0 online_movable")?.time;
            }
            self.add(sample, "to_ram", Guest::Hotmem, time);
            let time = vm.reconfigure("devdax 0 force")?.time;
            self.add(sample, "to_device", Guest::Hotmem, time);
        }
        vm.command("end")?;
        vm.finish()?;
        Ok(())
    }

    /// Measures Linux. If it does not end in time, the record says so.
    fn measure_linux(
        &self,
        linux: &Linux,
        sample: &mut Sample,
        failures: &mut Failures,
        progress: &ProgressBar,
    ) {
        let mut step = "to_ram";
        let measured = self.start_linux(linux).and_then(|mut vm| {
            for _ in 0..self.rounds(Guest::Linux) {
                step = "to_ram";
                let (with, to_ram) = wait_for_change(&mut vm)?;
                step = "to_device";
                let (without, to_device) = wait_for_change(&mut vm)?;
                let (became_ram, size) = (Bytes(with.0.saturating_sub(without.0)), self.size());
                step = "to_ram";
                // daxctl does not say if it has put only a part online.
                ensure!(became_ram + LINUX_BLOCK >= size, "only {became_ram} of {size} became RAM");
                self.add(sample, "to_ram", Guest::Linux, to_ram);
                self.add(sample, "to_device", Guest::Linux, to_device);
            }
            Ok(())
        });
        let step = PeerStep {
            case: &format!("{}/{step}", self.name()),
            subject: &Guest::Linux.to_string(),
            time_limit: (!self.counts()).then_some((TIME, self.args.limit.into())),
        };
        failures.add(measured, &step, sample, progress);
    }

    fn start_linux(&self, linux: &Linux) -> Result<Vm> {
        let devices = self.sizes();
        let boot_memory = LINUX_MEMORY + Bytes(self.size().frames() * DESCRIPTOR.0);
        let config = linux.config(Bytes::ZERO);
        let config = config.with_guest_option("online", self.policy);
        let config = config.with_guest_option("rounds", self.rounds(Guest::Linux));
        let config = config.with_guest_option("ways", self.devices);
        let config = Config {
            emulator: Emulator::with_cxl().context("this needs QEMU 10: `cargo xtask setup`")?,
            cpu: Some(LINUX_CPU),
            boot_memory,
            // With a node in the tables, Linux gives the window a node of its own.
            nodes: vec![boot_memory],
            cxl: Some(Cxl::volatile(&devices)),
            icount: self.counts(),
            patience: Duration::from_secs(self.args.limit.into()),
            ..config
        };
        host::ensure_available(config.host_memory())?;
        Ok(Vm::start(&config)?)
    }
}

/// Waits until Linux has changed its memory. Returns what is online now, and the time that it took.
fn wait_for_change(vm: &mut Vm) -> Result<(Bytes, Duration)> {
    let changed = |event: &Event| match *event {
        Event::Reconfigured { online, us, .. } => Some((Bytes(online), Duration::from_micros(us))),
        _ => None,
    };
    Ok(vm.wait("change of memory", changed)?.0)
}
