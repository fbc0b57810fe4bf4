//! `hotmem bench nvdimm`: measures how long each guest takes to bind persistent memory.

use super::measure::Measure;
use super::record::{self, Metric, Record, Sample};
use super::results;
use crate::out::OutputError;
use crate::{
    guest::Guest,
    linux::{DESCRIPTOR, Drivers, Linux},
    progress,
    qemu::{Accel, Architecture, Config, Event, Vm, accel, host, image},
    size,
    table::Groups,
};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{path::PathBuf, time::Duration};

/// The name of the bench in its records.
pub(super) const NAME: &str = "nvdimm";

/// Arguments of `hotmem bench nvdimm`.
#[derive(clap::Args)]
pub struct Args {
    /// The size of the NVDIMM
    #[arg(long, value_name = "SIZE", default_value = "100G", value_parser = size::parse)]
    size: Bytes,
    /// The guests to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem")]
    guests: Vec<Guest>,
    /// The modes in which the NVDIMM is bound
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "fsdax,devdax-2M,devdax-2M-shared"
    )]
    cases: Vec<Case>,
    /// What to measure: the time by the guest's clock, or the guest's instructions, whose count takes
    /// long
    #[arg(long, value_enum, value_delimiter = ',', default_value = "time,instructions")]
    measures: Vec<Measure>,
    /// The number of rebinds for each median of time
    #[arg(long, value_name = "N", default_value_t = 30,
          value_parser = clap::value_parser!(u32).range(1..))]
    rebinds: u32,
    /// The number of rebinds for each median of instructions, which vary little
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    counted_rebinds: u32,
    /// What runs the guest's instructions when time is measured [default: KVM, if a guest boots
    /// under it within a second; otherwise TCG, which also counts instructions]
    #[arg(long, value_enum)]
    accel: Option<Accel>,
    /// The reference guest's image [default: built from the workspace]
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The mode of a namespace, and the memory that holds its descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Case {
    /// Single frames, described on the device
    Fsdax,
    /// Compounds of 2 MiB, described on the device
    #[value(name = "devdax-2M")]
    Devdax2M,
    /// Compounds of 2 MiB, described in ordinary memory, with shared tails
    #[value(name = "devdax-2M-shared")]
    Devdax2MShared,
}

/// The time of writing the descriptors.
pub(super) const TIME: Metric = ("time", "s");
/// The time of the whole bind, including its page tables.
pub(super) const BIND_TIME: Metric = ("bind_time", "s");
/// The time of the device's first bind.
const FIRST_TIME: Metric = ("first_time", "s");
pub(super) const INSTRUCTIONS: Metric = ("instructions_per_frame", "count");
const BIND_INSTRUCTIONS: Metric = ("bind_instructions_per_frame", "count");
/// The mean number of bytes written to describe a frame.
const WRITTEN: Metric = ("written_per_frame", "B");
/// The memory for descriptors that is saved by shared tails.
const SAVED: Metric = ("saved", "MiB");

const BOOT_MEMORY: Bytes = Bytes::gib(3);
/// The host memory for the data that the reference guest writes. The guest writes at most 258
/// frames, and the host may allocate a huge page for each.
const DATA_MEMORY: Bytes = Bytes::mib(2 * 258);

/// A guest's figures for one bind.
struct Bind {
    frames: u64,
    bytes_saved: Bytes,
    bytes_written: Bytes,
    describe_time: Duration,
    bind_time: Duration,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let measure = |sample: &mut Sample| measure_all(args, sample);
    let print = |records: &[Record]| {
        record::print(records)?;
        say!()?;
        Ok(print_side_by_side(records, args)?)
    };
    results::collect(NAME, args.json.as_deref(), measure, print)
}

/// Measures all cases.
fn measure_all(args: &Args, sample: &mut Sample) -> Result<()> {
    if args.guests.contains(&Guest::HotmemWithDescriptors) {
        bail!(
            "--guests {} is not a guest of this bench: all guests describe persistent memory",
            Guest::HotmemWithDescriptors
        );
    }
    let hotmem = args.guests.contains(&Guest::Hotmem);
    let image = hotmem.then(|| image::find(args.guest_image.as_deref())).transpose()?;
    let linux = args
        .guests
        .contains(&Guest::Linux)
        .then(|| Linux::find(Architecture::X86_64, Drivers::Nvdimm));
    let linux = linux.transpose()?;
    let accel = match args.accel {
        Some(accel) => accel,
        None if args.measures.contains(&Measure::Time) => {
            accel::best_accel(args.guest_image.as_deref())?
        }
        None => Accel::Tcg,
    };
    let mut bench = Bench { args, accel, sample, progress: progress::spinner() };
    for &case in &args.cases {
        for &measure in &args.measures {
            for &guest in &args.guests {
                let config = match (guest, &image, &linux) {
                    (Guest::Hotmem, Some(image), _) => Config::new(image.clone(), Bytes::ZERO),
                    (Guest::Linux, _, Some(linux)) => linux.config(Bytes::ZERO),
                    _ => bail!("the image of {guest} was not searched for"),
                };
                let measured = bench.measure(config, case, measure, guest);
                measured.with_context(|| format!("{}, {guest}", case.name()))?;
            }
        }
    }
    bench.progress.finish_and_clear();
    Ok(())
}

impl Case {
    fn name(self) -> String {
        let name = self.to_possible_value();
        format!("{}/rebind", name.as_ref().map_or("", |name| name.get_name()))
    }

    /// Returns the options of the reference guest.
    fn guest_options(self) -> [(&'static str, &'static str); 3] {
        match self {
            Case::Fsdax => [("nvdimm", "fsdax"), ("map", "dev"), ("tails", "own")],
            Case::Devdax2M => [("nvdimm", "devdax"), ("map", "dev"), ("tails", "own")],
            Case::Devdax2MShared => [("nvdimm", "devdax"), ("map", "mem"), ("tails", "shared")],
        }
    }
}

struct Bench<'a> {
    args: &'a Args,
    accel: Accel,
    sample: &'a mut Sample,
    progress: ProgressBar,
}

impl Bench<'_> {
    /// Boots once, and measures the first bind and each rebind.
    fn measure(
        &mut self,
        config: Config,
        case: Case,
        measure: Measure,
        guest: Guest,
    ) -> Result<()> {
        let counting = measure == Measure::Instructions;
        let rebinds = if counting { self.args.counted_rebinds } else { self.args.rebinds };
        let config = case
            .guest_options()
            .into_iter()
            .fold(config, |config, (key, value)| config.with_guest_option(key, value));
        // Keep the guest running after its work, so that nothing else runs during the last bind.
        let config =
            config.with_guest_option("rebinds", rebinds).with_guest_option("exit", "nvdimm");
        let descriptors = Bytes(self.args.size.frames() * DESCRIPTOR.0);
        let accel = if counting { Accel::Tcg } else { self.accel };
        self.sample.set_executor(accel.into());
        let config = Config {
            boot_memory: BOOT_MEMORY,
            nvdimms: vec![self.args.size],
            touched_memory: descriptors + DATA_MEMORY,
            accel,
            icount: counting,
            ..config
        };
        host::ensure_available(config.host_memory())?;
        let (name, subject) = (case.name(), guest.to_string());
        let mut vm = Vm::start(&config)?;
        for turn in 0..=rebinds {
            self.progress.set_message(format!("{name}, {guest}, {turn} of {rebinds}"));
            let bind = wait_for_bind(&mut vm)?;
            let mut add = |metric, value| self.sample.add(&name, &subject, metric, value);
            let per_frame = |took: Duration| took.as_nanos() as f64 / bind.frames as f64;
            match (counting, turn) {
                (false, 0) => add(FIRST_TIME, bind.describe_time.as_secs_f64()),
                (false, _) => {
                    add(TIME, bind.describe_time.as_secs_f64());
                    add(BIND_TIME, bind.bind_time.as_secs_f64());
                }
                (true, 0) => {}
                (true, _) => {
                    add(INSTRUCTIONS, per_frame(bind.describe_time));
                    add(BIND_INSTRUCTIONS, per_frame(bind.bind_time));
                }
            }
            if turn == rebinds && guest == Guest::Hotmem && !counting {
                add(WRITTEN, bind.bytes_written.0 as f64 / bind.frames as f64);
                add(SAVED, bind.bytes_saved.0 as f64 / f64::from(1 << 20));
            }
        }
        if guest == Guest::Hotmem {
            vm.finish()?;
        }
        Ok(())
    }
}

/// Waits for the end of the next bind, and returns its figures.
fn wait_for_bind(vm: &mut Vm) -> Result<Bind> {
    let bind = |event: &Event| match *event {
        Event::Bound { frames, saved, written, describe_us, us, .. } => Some(Bind {
            frames,
            bytes_saved: Bytes(saved),
            bytes_written: Bytes(written),
            describe_time: Duration::from_micros(describe_us),
            bind_time: Duration::from_micros(us),
        }),
        _ => None,
    };
    Ok(vm.wait("bind", bind)?.0)
}

/// Prints the figures of the guests side by side.
fn print_side_by_side(records: &[record::Record], args: &Args) -> Result<(), OutputError> {
    let mut groups = Groups::new(&["metric", "hotmem", "linux", "linux / hotmem"], 1);
    for case in &args.cases {
        groups.begin(case.name());
        for metric in [TIME, BIND_TIME, INSTRUCTIONS, BIND_INSTRUCTIONS] {
            let figure_of = |guest: &str| {
                records.iter().find(|r| {
                    r.case == case.name() && r.has_metric(metric) && r.subject_name() == guest
                })
            };
            if let (Some(hotmem), Some(linux)) = (figure_of("hotmem"), figure_of("linux")) {
                groups.add_row([
                    metric.0.into(),
                    hotmem.show(hotmem.median),
                    linux.show(linux.median),
                    format!("{:.1}", linux.median / hotmem.median),
                ]);
            }
        }
    }
    if !groups.is_empty() {
        say!("{groups}")?;
        say!(
            "Linux reports the time of writing descriptors to 1 ms, and of a whole bind to 10 ms."
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_the_documented_names() {
        let names: Vec<_> = Case::value_variants().iter().map(|case| case.name()).collect();
        assert_eq!(names, ["fsdax/rebind", "devdax-2M/rebind", "devdax-2M-shared/rebind"]);
    }
}
