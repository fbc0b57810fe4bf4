//! `hotmem bench ports`: measures other kernels that use Hotmem, while the host changes their
//! memory.

#[cfg(feature = "report")]
pub(crate) mod section;

use super::{
    record::{self, Metric, Record, Sample},
    results,
};
use crate::{
    port::{ARCEOS, ARCEOS_PAGING, C_KERNEL, Kernel, OSTD, OSTD_HOTMEM, OSTD_OSDK},
    progress,
    qemu::{Accel, host},
    size,
};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{fmt, path::PathBuf};

/// The name of the bench in its records.
const NAME: &str = "ports";

/// Arguments of `hotmem bench ports`.
#[derive(clap::Args)]
pub struct Args {
    /// The kernels to measure, which `cargo xtask ports build` builds
    #[arg(long, value_enum, value_delimiter = ',', default_value = "arceos,ostd,c-kernel")]
    kernels: Vec<Port>,
    /// The sizes of memory to plug
    #[arg(long, value_delimiter = ',', value_name = "SIZE", default_value = "1G,4G",
          value_parser = size::parse)]
    sizes: Vec<Bytes>,
    /// How often each size is plugged and unplugged, each time on a new machine. The memory that
    /// the host holds and instructions are measured once
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A kernel that uses Hotmem.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Port {
    /// ArceOS, from the registry
    #[value(name = "arceos")]
    ArceOs,
    /// OSTD, from the registry, with Hotmem and with its own allocator
    Ostd,
    /// A freestanding kernel in C
    CKernel,
}

/// The time from the host's request until the guest reports that it uses the memory or has released
/// it.
const TIME: Metric = ("time", "s");
const INSTRUCTIONS: Metric = ("instructions_per_op", "count");
/// The free memory of a guest after its boot.
const FREE_MEMORY: Metric = ("free", "MiB");
/// The memory of a guest that the host holds.
const HOST_MEMORY: Metric = ("held", "MiB");

/// The number of segment sizes that OSTD's kernels measure.
const SEGMENT_SIZES: usize = 9;
/// The amount of memory that is used, freed and then reported to the host.
const REPORTED: Bytes = Bytes::gib(1);

impl Port {
    /// Returns the kernel of this port whose memory the bench plugs and unplugs.
    fn resized_kernel(self) -> Kernel {
        match self {
            Port::ArceOs => ARCEOS,
            Port::Ostd => OSTD,
            Port::CKernel => C_KERNEL,
        }
    }

    /// Returns all kernels of this port that are measured.
    fn kernels(self) -> &'static [Kernel] {
        match self {
            Port::ArceOs => &[ARCEOS, ARCEOS_PAGING],
            Port::Ostd => &[OSTD, OSTD_HOTMEM, OSTD_OSDK],
            Port::CKernel => &[C_KERNEL],
        }
    }

    /// Returns the first kernel of this port that was not built.
    fn unbuilt(self) -> Option<&'static Kernel> {
        self.kernels().iter().find(|kernel| !kernel.image().is_file())
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// Returns the names of the ports that cannot be measured.
pub(super) fn unbuilt() -> Vec<String> {
    let unbuilt = Port::value_variants().iter().filter(|port| port.unbuilt().is_some());
    unbuilt.map(Port::to_string).collect()
}

pub(super) fn run(args: &Args) -> Result<()> {
    if args.kernels.iter().all(|port| port.unbuilt().is_some()) {
        bail!("no kernel is built: `cargo xtask ports build` builds them");
    }
    let measure = |sample: &mut Sample| {
        sample.set_executor(Accel::Tcg.into());
        let mut bench = Bench { args, sample, progress: progress::spinner() };
        for &port in args.kernels.iter().filter(|port| port.unbuilt().is_none()) {
            bench.measure(port).with_context(|| format!("{port}"))?;
        }
        bench.progress.finish_and_clear();
        Ok(())
    };
    let print = |records: &[Record]| {
        record::print(records)?;
        for &port in &args.kernels {
            if let Some(Kernel { image, .. }) = port.unbuilt() {
                let build = "`cargo xtask ports build` builds";
                say!("{port} was not measured: {build} target/ports/{image}")?;
            }
        }
        Ok(())
    };
    results::collect(NAME, args.json.as_deref(), measure, print)
}

struct Bench<'a> {
    args: &'a Args,
    sample: &'a mut Sample,
    progress: ProgressBar,
}

impl Bench<'_> {
    fn measure(&mut self, port: Port) -> Result<()> {
        self.plug(port)?;
        match port {
            Port::ArceOs => self.first_allocation(port)?,
            Port::Ostd => self.segments(port)?,
            Port::CKernel => {}
        }
        self.report_free(port)
    }

    fn plug(&mut self, port: Port) -> Result<()> {
        let kernel = port.resized_kernel();
        for &size in &self.args.sizes {
            for run in 1..=self.args.runs {
                let size_name = size::short(size);
                self.progress.set_message(format!("{port}, {size_name}, run {run}"));
                host::ensure_available(kernel.config(size).host_memory())?;
                let outcome = kernel.plug_and_unplug(size)?;
                if outcome.checked_memory < size || outcome.still_plugged > Bytes::ZERO {
                    bail!(
                        "the guest used {} of {size_name}, and {} are still plugged at the end",
                        outcome.checked_memory,
                        outcome.still_plugged
                    );
                }
                for (change, resize) in [("plug", &outcome.plug), ("unplug", &outcome.unplug)] {
                    let case = format!("{port}/{size_name}/{change}");
                    self.sample.add(&case, "hotmem", TIME, resize.recognised.as_secs_f64());
                }
            }
        }
        Ok(())
    }

    fn first_allocation(&mut self, port: Port) -> Result<()> {
        self.progress.set_message(format!("{port}, first allocation"));
        for time in ARCEOS_PAGING.first_allocations(9)? {
            let case = format!("{port}/first-allocation");
            self.sample.add(&case, "hotmem", TIME, time.as_secs_f64());
        }
        Ok(())
    }

    /// Counts the instructions of allocating segments with Hotmem and with OSTD's own allocator.
    fn segments(&mut self, port: Port) -> Result<()> {
        for (kernel, subject) in [(OSTD_HOTMEM, "hotmem"), (OSTD_OSDK, "osdk-frame-allocator")] {
            self.progress.set_message(format!("{port}, segments, {subject}"));
            host::ensure_available(kernel.config(Bytes::ZERO).host_memory())?;
            let measured = kernel.measure_segments(SEGMENT_SIZES)?;
            self.sample.add(
                &format!("{port}/boot"),
                subject,
                FREE_MEMORY,
                in_mib(measured.free_memory),
            );
            for (segment, instructions) in measured.instructions {
                // The kernel names a segment by its number of frames and a word.
                let frames = segment.split(' ').next().unwrap_or(&segment);
                let case = format!("{port}/segment/{frames}");
                self.sample.add(&case, subject, INSTRUCTIONS, instructions as f64);
            }
        }
        Ok(())
    }

    /// Measures the memory that the host holds while the guest uses its memory, and after the guest
    /// has reported it.
    fn report_free(&mut self, port: Port) -> Result<()> {
        self.progress.set_message(format!("{port}, reporting"));
        let held = port.resized_kernel().report_free(REPORTED)?;
        for (state, bytes) in [("in-use", held.largest), ("free", held.after_report)] {
            let case = format!("{port}/{}/{state}", size::short(REPORTED));
            self.sample.add(&case, "hotmem", HOST_MEMORY, in_mib(bytes));
        }
        Ok(())
    }
}

fn in_mib(bytes: Bytes) -> f64 {
    bytes.0 as f64 / f64::from(1 << 20)
}
