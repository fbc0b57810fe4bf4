//! `hotmem bench vm`: plugging and unplugging memory, boot after boot.

use super::record::{self, Sample};
use crate::{
    progress,
    qemu::{Accel, Config, Event, Resize, Vm, image},
    size,
};
use anyhow::{Context, Result};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::path::{Path, PathBuf};

/// Arguments of `hotmem bench vm`.
#[derive(clap::Args)]
pub struct Args {
    /// How much to plug
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = size::parse,
          default_value = "16G,64G,256G,512G,4T")]
    sizes: Vec<Bytes>,
    /// Who is measured
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hotmem")]
    guests: Vec<Guest>,
    /// Boots for each median
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How much the guest writes to before memory is taken away that is in use
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size::parse)]
    touch: Bytes,
    /// Memory at boot
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    boot_memory: Bytes,
    /// What runs the guest's instructions
    #[arg(long, value_enum, default_value_t)]
    accel: Accel,
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The guest's image; built from the workspace if not given
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
}

/// Guests that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Guest {
    /// The reference guest
    Hotmem,
}

/// From the request to the guest's own "done".
const TIME: (&str, &str) = ("time", "s");
/// From the request until the device has plugged or unplugged everything.
const DEVICE_TIME: (&str, &str) = ("device_time", "s");
/// Requests that the guest's driver made.
const REQUESTS: (&str, &str) = ("requests", "count");
/// From QEMU's start to the guest's first line.
const FIRST_LINE: (&str, &str) = ("first_line", "s");

pub(super) fn run(args: &Args) -> Result<()> {
    let image = image::find(args.guest_image.as_deref())?;
    let mut sample = Sample::new("vm");
    let progress = progress::bar(args.boots());
    for &guest in &args.guests {
        for &size in &args.sizes {
            for _ in 0..args.runs {
                args.measure(guest, size, &image, &mut sample, &progress)
                    .with_context(|| format!("{}, {guest:?}", size::short(size)))?;
            }
        }
    }
    progress.finish_and_clear();
    let records = sample.records();
    record::print(&records);
    args.json.as_deref().map_or(Ok(()), |path| record::write_json(&records, path))
}

impl Args {
    fn boots(&self) -> u64 {
        2 * self.guests.len() as u64 * self.sizes.len() as u64 * u64::from(self.runs)
    }

    /// Two boots: in one nobody touches the memory, in the other the guest does.
    fn measure(
        &self,
        guest: Guest,
        size: Bytes,
        image: &Path,
        sample: &mut Sample,
        progress: &ProgressBar,
    ) -> Result<()> {
        let Guest::Hotmem = guest;
        let case = format!("{}/online_movable", size::short(size));
        let config = Config {
            boot_memory: self.boot_memory,
            accel: self.accel,
            ..Config::new(image.into(), size)
        };
        progress.set_message(case.clone());
        let mut vm = Vm::start(&config)?;
        sample.add("boot", "hotmem", FIRST_LINE, vm.first_line()?.as_secs_f64());
        device(&mut vm)?;
        let mut add = |case: String, resize: Resize| {
            sample.add(&case, "hotmem", TIME, resize.recognised.as_secs_f64());
            sample.add(&case, "hotmem", DEVICE_TIME, resize.device_done.as_secs_f64());
            sample.add(&case, "hotmem", REQUESTS, resize.requests as f64);
        };

        add(format!("{case}/plug"), vm.resize(size)?);
        add(format!("{case}/unplug"), vm.resize(Bytes::ZERO)?);
        drop(vm);
        progress.inc(1);

        let touch = self.touch.min(size);
        let mut vm = Vm::start(&config.touching(touch))?;
        device(&mut vm)?;
        vm.resize(size)?;
        vm.wait("end of the touching", |event| {
            matches!(event, Event::Touched { .. }).then_some(())
        })?;
        add(format!("{case}/unplug-touched-{}", size::short(touch)), vm.resize(Bytes::ZERO)?);
        drop(vm);
        progress.inc(1);
        Ok(())
    }
}

/// Waits until the guest drives its device.
fn device(vm: &mut Vm) -> Result<()> {
    vm.wait("virtio-mem device", |event| matches!(event, Event::Device { .. }).then_some(()))?;
    Ok(())
}
