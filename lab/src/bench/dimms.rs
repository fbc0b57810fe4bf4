//! `hotmem bench dimms`: measures how long each guest takes to use the memory of DIMMs, and to give it back.
//!
//! A time is that of the host: from QEMU's answer to the command that inserts the first DIMM until the guest
//! has accepted the last one by `_OST`, and from the answer to the first command that asks for a DIMM until
//! QEMU has deleted the last one. Instructions are those of the guest that handle an insertion, without the
//! interrupt: in Linux, those of the function `acpi_device_hotplug`.

#[cfg(feature = "report")]
pub(crate) mod section;

use super::failures::{Failures, PeerStep};
use super::measure::Measure;
use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::{
    guest::{Guest, Policy},
    linux::{Drivers, Linux},
    progress,
    qemu::{Accel, Architecture, Config, Emulator, Event, HostEvent, Vm, host, image},
    size,
};
use anyhow::{Context, Result, bail, ensure};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// The name of the bench in its records.
const NAME: &str = "dimms";

/// Arguments of `hotmem bench dimms`.
#[derive(clap::Args)]
pub struct Args {
    /// The numbers of DIMMs and their sizes
    #[arg(long, value_name = "NxSIZE", value_delimiter = ',', default_value = "1x1G,16x4G",
          value_parser = parse_dimms)]
    cases: Vec<Dimms>,
    /// The policies by which RAM is brought online
    #[arg(long, value_enum, value_delimiter = ',', default_value = "online_movable")]
    policies: Vec<Policy>,
    /// The guests to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem")]
    guests: Vec<Guest>,
    /// What to measure: the time by the host's clock, or the guest's instructions, whose count takes
    /// long
    #[arg(long, value_enum, value_delimiter = ',', default_value = "time,instructions")]
    measures: Vec<Measure>,
    /// The number of runs for each median of time, after one that is not counted
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The time limit of a step of Linux, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The reference guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Some DIMMs of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Dimms {
    count: u32,
    size: Bytes,
}

const TIME: Metric = ("time", "s");
const INSTRUCTIONS: Metric = ("instructions", "count");

/// The guests know 32 memory slots, and one DIMM more ends the reference guest.
const MAX_DIMMS: u32 = 31;
/// The size of the DIMM whose insertion ends the reference guest.
const LAST_DIMM: Bytes = Bytes::mib(128);
/// The boot memory of Linux without the descriptors of the DIMMs.
const LINUX_MEMORY: Bytes = Bytes::mib(768);

fn parse_dimms(text: &str) -> Result<Dimms, String> {
    let (count, size) = text.split_once('x').ok_or("not a number of DIMMs, `x`, and a size")?;
    let count = count.parse().ok().filter(|count| (1..=MAX_DIMMS).contains(count));
    let count = count.ok_or_else(|| format!("the number of DIMMs is 1 to {MAX_DIMMS}"))?;
    let size = size::parse(size)?;
    if size == Bytes::ZERO || !size.0.is_multiple_of(LAST_DIMM.0) {
        return Err(format!("the size of a DIMM is whole memory blocks of {LAST_DIMM}"));
    }
    Ok(Dimms { count, size })
}

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
    if args.policies.contains(&Policy::Offline) {
        bail!("--policies {}: memory must come online to be used", Policy::Offline);
    }
    let has = |guest| args.guests.contains(&guest);
    let image = has(Guest::Hotmem).then(|| image::find(args.guest_image.as_deref())).transpose()?;
    let linux = has(Guest::Linux).then(|| Linux::find(Architecture::X86_64, Drivers::Dimms));
    let linux = linux.transpose()?;
    sample.set_executor(Accel::Tcg.into());
    let progress = progress::spinner();
    let mut failures = Failures::default();
    for case in args.cases() {
        if let Some(image) = &image {
            let config = Config::new(image.clone(), Bytes::ZERO);
            let measured = case.measure_hotmem(config, sample);
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
        let of_dimms = move |&dimms| {
            let of_policy = move |&policy| {
                let case = move |&measure| Case { args: self, dimms, policy, measure };
                self.measures.iter().map(case)
            };
            self.policies.iter().flat_map(of_policy)
        };
        self.cases.iter().flat_map(of_dimms)
    }
}

/// Some DIMMs, whose memory comes online by a policy.
struct Case<'a> {
    args: &'a Args,
    dimms: Dimms,
    policy: Policy,
    measure: Measure,
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("{}x{}/{}", self.dimms.count, self.dimms.size, self.policy)
    }

    fn size(&self) -> Bytes {
        Bytes(self.dimms.size.0 * u64::from(self.dimms.count))
    }

    fn counts(&self) -> bool {
        self.measure == Measure::Instructions
    }

    /// Returns the number of rounds, with the first one, which is not measured.
    fn rounds(&self) -> u32 {
        // Instructions vary little.
        1 + if self.counts() { 1 } else { self.args.rounds }
    }

    fn metric(&self) -> Metric {
        if self.counts() { INSTRUCTIONS } else { TIME }
    }

    fn add(&self, sample: &mut Sample, step: &str, guest: Guest, value: f64) {
        sample.add(&format!("{}/{step}", self.name()), &guest.to_string(), self.metric(), value);
    }

    fn measure_hotmem(&self, config: Config, sample: &mut Sample) -> Result<()> {
        let resizes = 2 * self.rounds() * self.dimms.count + 1;
        let config = config.with_guest_option("exit", format!("resizes:{resizes}"));
        let mut vm = self.start(config)?;
        for round in 0..self.rounds() {
            let time = self.insert(&mut vm, round)?;
            let mut in_guest = Duration::ZERO;
            for _ in 0..self.dimms.count {
                in_guest += vm.wait_for_added_dimm()?.1;
            }
            self.add_insertion(sample, Guest::Hotmem, round, time, in_guest);
            let time = self.remove(&mut vm, round)?;
            self.add_removal(sample, Guest::Hotmem, round, time);
        }
        vm.insert_dimm("last", LAST_DIMM, 0)?;
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
        let mut step = "insert";
        let measured = self.start_linux(linux).and_then(|mut vm| {
            for round in 0..self.rounds() {
                step = "insert";
                let time = self.insert(&mut vm, round)?;
                // The guest prints the event only when all memory is online.
                let in_guest = vm.wait_for_added_dimm()?.1;
                self.add_insertion(sample, Guest::Linux, round, time, in_guest);
                step = "remove";
                let time = self.remove(&mut vm, round)?;
                vm.wait_for_removed_dimm()?;
                self.add_removal(sample, Guest::Linux, round, time);
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

    fn add_insertion(
        &self,
        sample: &mut Sample,
        guest: Guest,
        round: u32,
        time: Duration,
        in_guest: Duration,
    ) {
        match self.measure {
            _ if round == 0 => {}
            Measure::Time => self.add(sample, "insert", guest, time.as_secs_f64()),
            // One instruction takes a nanosecond.
            Measure::Instructions => {
                self.add(sample, "insert", guest, in_guest.as_nanos() as f64);
            }
        }
    }

    fn add_removal(&self, sample: &mut Sample, guest: Guest, round: u32, time: Duration) {
        if round != 0 && !self.counts() {
            self.add(sample, "remove", guest, time.as_secs_f64());
        }
    }

    fn start_linux(&self, linux: &Linux) -> Result<Vm> {
        let config = linux.config(Bytes::ZERO);
        let config = config.with_guest_option("slots", self.dimms.count);
        let config = config.with_guest_option("size", self.size().0);
        let config = config.with_guest_option("count", if self.counts() { "on" } else { "off" });
        let boot_memory = LINUX_MEMORY + Linux::min_boot_memory(self.size());
        self.start(Config {
            boot_memory,
            patience: Duration::from_secs(self.args.limit.into()),
            ..config
        })
    }

    /// Starts a machine with memory slots, and waits until its guest has booted.
    fn start(&self, config: Config) -> Result<Vm> {
        let config = config.with_guest_option("online", self.policy);
        let config = Config {
            emulator: Emulator::backport().unwrap_or(Emulator::from_env()),
            // Without a node, QEMU has no proximity domain for the slots.
            nodes: vec![config.boot_memory],
            memory_slots: self.dimms.count + 1,
            max_memory: Some(config.boot_memory + self.size() + LAST_DIMM),
            icount: self.counts(),
            ..config
        };
        host::ensure_available(config.host_memory())?;
        let mut vm = Vm::start(&config)?;
        vm.wait("boot", |event| matches!(event, Event::Boot { .. }).then_some(()))?;
        Ok(vm)
    }

    /// Inserts all DIMMs. Returns the time until the guest has accepted them.
    fn insert(&self, vm: &mut Vm, round: u32) -> Result<Duration> {
        let name = |n| format!("{round}.{n}");
        for n in 0..self.dimms.count {
            vm.add_dimm_memory(&name(n), self.dimms.size)?;
        }
        let mut started = None;
        for n in 0..self.dimms.count {
            vm.plug_dimm(&name(n), 0)?;
            started.get_or_insert_with(Instant::now);
        }
        for _ in 0..self.dimms.count {
            match vm.next_device_event()? {
                HostEvent::Answered { is_accepted: true, .. } => {}
                event => bail!("the guest does not use a DIMM: {event:?}"),
            }
        }
        Ok(started.map_or(Duration::ZERO, |started| started.elapsed()))
    }

    /// Asks for all DIMMs. Returns the time until the guest has given them back.
    fn remove(&self, vm: &mut Vm, round: u32) -> Result<Duration> {
        let name = |n| format!("{round}.{n}");
        let mut started = None;
        for n in 0..self.dimms.count {
            vm.remove_dimm(&name(n))?;
            started.get_or_insert_with(Instant::now);
        }
        let mut gone = 0;
        while gone < self.dimms.count {
            let event = vm.next_device_event()?;
            ensure!(!matches!(event, HostEvent::Refused(_)), "the guest keeps a DIMM: {event:?}");
            gone += u32::from(matches!(event, HostEvent::Deleted(_)));
        }
        let time = started.map_or(Duration::ZERO, |started| started.elapsed());
        for n in 0..self.dimms.count {
            vm.free_dimm(&name(n))?;
        }
        Ok(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimms_are_a_number_and_a_size() {
        let dimms = Dimms { count: 16, size: Bytes::gib(4) };
        assert_eq!(parse_dimms("16x4G"), Ok(dimms));
        for wrong in ["4G", "0x4G", "32x4G", "1x0", "1x64M", "1x", "ax1G"] {
            assert!(parse_dimms(wrong).is_err(), "{wrong}");
        }
    }
}
