//! `hotmem vm`: one guest, watched while its memory changes.

use crate::{
    progress,
    qemu::{Accel, Config, Event, Resize, Vm, image},
    size,
    table::{table, time},
};
use anyhow::{Result, bail};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{path::PathBuf, time::Duration};

/// The least memory that the reference guest boots with.
const LEAST_BOOT_MEMORY: Bytes = Bytes::mib(64);

/// Arguments of `hotmem vm`.
#[derive(clap::Args)]
pub struct Args {
    /// Memory at boot
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse)]
    boot_memory: Bytes,
    /// Memory to plug while the guest runs
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    plug: Bytes,
    /// Memory that the guest writes to and checks before it gives it back
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    touch: Option<Bytes>,
    /// Take the memory away again
    #[arg(long)]
    unplug: bool,
    /// Take the memory away and plug it a second time
    #[arg(long)]
    replug: bool,
    /// The device's block size
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = size::parse)]
    block_size: Bytes,
    /// What runs the guest's instructions
    #[arg(long, value_enum, default_value_t)]
    accel: Accel,
    /// The guest's image; built from the workspace if not given
    #[arg(long, value_name = "PATH")]
    guest_image: Option<PathBuf>,
}

/// One line of the table.
struct Row {
    step: &'static str,
    memory: Bytes,
    took: Took,
}

enum Took {
    Resize(Resize),
    InGuest(Duration),
}

/// Boots the guest, changes its memory, prints what each step took.
///
/// # Errors
/// Whatever [`crate::qemu::Error`] says, and arguments that contradict each other.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
    let progress = progress::spinner();
    progress.set_message("looking for the guest's image");
    let image = progress.suspend(|| image::find(args.guest_image.as_deref()))?;
    progress.set_message("booting");
    let mut vm = Vm::start(&args.config(image))?;
    let first_line = vm.first_line()?;
    vm.wait("virtio-mem device", |event| {
        matches!(event, Event::Device { kind, .. } if kind == "virtio-mem").then_some(())
    })?;
    let rows = args.change_memory(&mut vm, &progress)?;
    let metadata = args.leave(vm)?;
    progress.finish_and_clear();

    println!("guest of {}, first line {} after QEMU's start", args.boot_memory, time(first_line));
    print_rows(&rows);
    if let Some(written) = metadata {
        let plugs = rows.iter().filter(|row| row.step.starts_with("plug"));
        let grown: u64 = plugs.map(|row| row.memory.0).sum();
        let percent = written.0 as f64 / grown as f64 * 100.0;
        println!("metadata written: {}, {percent:.6} % of what was plugged", size::about(written));
    }
    println!("the guest's own checks: PASS");
    Ok(())
}

impl Args {
    fn check(&self) -> Result<()> {
        if self.boot_memory < LEAST_BOOT_MEMORY {
            bail!("--boot-memory {}: the guest needs {LEAST_BOOT_MEMORY}", self.boot_memory);
        }
        if !self.block_size.0.is_power_of_two() {
            bail!("--block-size {}: a block size is a power of two", self.block_size);
        }
        if self.plug == Bytes::ZERO || !self.plug.0.is_multiple_of(self.block_size.0) {
            bail!("--plug {}: plugs whole blocks of {}", self.plug, self.block_size);
        }
        if self.touch.is_some_and(|touch| touch > self.plug) {
            bail!("--touch: more than the {} that are plugged", self.plug);
        }
        Ok(())
    }

    fn config(&self, image: PathBuf) -> Config {
        let config =
            Config::new(image, self.plug).with("exit", format!("resizes:{}", self.resizes() + 1));
        let config = match self.touch {
            Some(size) => config.touching(size),
            None => config,
        };
        Config {
            boot_memory: self.boot_memory,
            block_size: self.block_size,
            accel: self.accel,
            ..config
        }
    }

    /// How often the memory changes, before [`Args::leave`].
    fn resizes(&self) -> u32 {
        if self.replug { 3 } else { 1 + u32::from(self.unplug) }
    }

    fn change_memory(&self, vm: &mut Vm, progress: &ProgressBar) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let steps = [("plug", self.plug), ("unplug", Bytes::ZERO), ("plug again", self.plug)];
        for &(step, target) in steps.iter().take(self.resizes() as usize) {
            progress.set_message(format!("{step} {}", self.plug));
            let resize = vm.resize(target)?;
            rows.push(Row { step, memory: self.plug, took: Took::Resize(resize) });
            if target != Bytes::ZERO && self.touch.is_some() {
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
            }
        }
        Ok(rows)
    }

    /// Changes the memory once more, after which the guest ends by itself: QEMU is not gone while
    /// a step is still being timed. Returns how much metadata the guest wrote, if it said.
    fn leave(&self, mut vm: Vm) -> Result<Option<Bytes>> {
        let plugged = vm.device_size()?;
        vm.request(if plugged == Bytes::ZERO { self.block_size } else { Bytes::ZERO })?;
        Ok(vm.finish()?)
    }
}

fn print_rows(rows: &[Row]) {
    let header = ["step", "memory", "device done", "recognised", "in the guest", "requests"];
    let mut table = table(&header, 1);
    for row in rows {
        let memory = row.memory.to_string();
        match &row.took {
            Took::Resize(resize) => table.add_row([
                row.step,
                &memory,
                &time(resize.device_done),
                &time(resize.recognised),
                &time(resize.in_guest),
                &resize.requests.to_string(),
            ]),
            Took::InGuest(took) => table.add_row([row.step, &memory, "", "", &time(*took), ""]),
        };
    }
    println!("{table}");
}
