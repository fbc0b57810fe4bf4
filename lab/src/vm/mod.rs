//! `hotmem vm`, which boots a guest, changes its memory, and prints the time of each step.

mod args;
mod balloon;
mod cxl;
mod dimms;
mod display;
mod late_memory;
mod outcome;
mod pseries;
mod rows;
mod touched;
mod vmm;

use crate::{
    guest::{Guest, Guests, Policy},
    progress,
    qemu::{Config, Vm},
    resident::Sampler,
    size,
};
use anyhow::{Result, bail};
pub use args::{Arch, Args};
use balloon::Resident;
use display::Display;
use hotmem::Bytes;
use outcome::Outcome;
use rows::{Row, StepTime};
use std::time::Duration;
use touched::wait_until_touched;
pub use vmm::Vmm;

/// Boots the guest, changes its memory, and prints the time of each step.
///
/// # Errors
/// A [`crate::qemu::Error`], or arguments that contradict each other.
pub fn run(args: &Args) -> Result<()> {
    args.check_vmm()?;
    if args.arch == Arch::Pseries {
        return args.run_pseries();
    }
    args.check()?;
    if let Some(count) = args.cxl {
        return cxl::run(&cxl::Plan { args, count });
    }
    args.check_files()?;
    if args.arch == Arch::Riscv64 {
        return late_memory::run(args);
    }
    let progress = progress::spinner();
    progress.set_message("looking for the guest's image");
    let architecture = args.architecture();
    let find = || args.machine.guests(architecture, &[args.guest], &[args.plug]);
    let guests = progress.suspend(find)?;
    progress.set_message("booting");
    let dimms = args.dimms.map(|count| dimms::Plan { args, count });
    let config = match &dimms {
        Some(dimms) => dimms.config(&guests)?,
        None => args.config(&guests)?,
    };
    let mut vm = Vm::launch(args.vmm.launch(&config)?)?;
    let display = Display::start(args, progress, &mut vm);
    let first_line = vm.first_line()?;
    match &dimms {
        Some(dimms) => dimms.wait_until_ready(&mut vm)?,
        None => args.guest.wait_until_ready(&mut vm)?,
    }
    let sampler = args.balloon.then(|| balloon::sampler(&vm));
    let rows = match &dimms {
        Some(dimms) => dimms.change_memory(&mut vm)?,
        None => args.change_memory(&mut vm, &display)?,
    };
    let started = vm.started();
    let samples = sampler.map(Sampler::finish);
    let metadata = match (&dimms, args.guest) {
        (Some(dimms), _) => dimms.end(vm)?,
        (None, Guest::Hotmem | Guest::HotmemWithDescriptors) => args.end(vm)?,
        (None, Guest::Linux) => None,
    };
    display.finish(args)?;
    let outcome = Outcome {
        boot_memory: guests.boot_memory(),
        first_line,
        remark: None,
        rows,
        resident: samples.map(|samples| Resident { started, samples }),
        metadata,
        is_checked: args.guest.is_reference(),
    };
    outcome.print(args)
}

impl Args {
    fn run_pseries(&self) -> Result<()> {
        if self.guest != Guest::Hotmem {
            bail!("--guest {}: on pseries only the reference guest can be booted", self.guest);
        }
        if self.balloon {
            bail!("--balloon: the pseries machine has no balloon device");
        }
        if self.touch.is_some_and(|touch| touch > self.plug) {
            bail!("--touch: this is more than the {} that are plugged", self.plug);
        }
        let online = match self.policy {
            Policy::Offline => "offline",
            Policy::Online | Policy::OnlineMovable => "movable",
            Policy::OnlineKernel => "kernel",
        };
        let plan = pseries::Plan {
            image: self.machine.image().map(Into::into),
            boot_memory: self.machine.boot_memory_or(Bytes::gib(1)),
            plug: self.plug,
            touch: self.touched_memory(),
            online,
            steps: self.resize_count(),
            icount: self.machine.counts_instructions(),
        };
        let progress = progress::spinner();
        progress.set_message("looking for the guest's image");
        let (ready, rows) = pseries::run(&plan, |step| progress.set_message(step.to_owned()))?;
        progress.finish_and_clear();
        let outcome = Outcome {
            boot_memory: plan.boot_memory,
            first_line: ready,
            remark: None,
            rows,
            resident: None,
            metadata: None,
            is_checked: true,
        };
        outcome.print(self)
    }

    fn config(&self, guests: &Guests) -> Result<Config> {
        let mut config = guests.config(self.guest, self.policy, self.plug)?;
        if self.guest.is_reference() {
            config =
                config.with_guest_option("exit", format!("resizes:{}", self.resize_count() + 1));
        }
        if let Some(size) = self.touched_memory() {
            config = config.with_touched_memory(size);
        }
        if self.balloon {
            config = balloon::config(config);
        }
        Ok(Config { block_size: self.block_size, ..config })
    }

    fn change_memory(&self, vm: &mut Vm, progress: &Display) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let steps = [("plug", self.plug), ("unplug", Bytes::ZERO), ("plug again", self.plug)];
        for &(step, target) in steps.iter().take(self.resize_count() as usize) {
            progress.set_message(format!("{step} {}", size::short(self.plug)));
            let resize = match self.guest {
                Guest::Hotmem | Guest::HotmemWithDescriptors => Some(vm.resize(target)?),
                Guest::Linux => vm.resize_within(target, Duration::from_secs(self.limit.into()))?,
            };
            let Some(resize) = resize else {
                let time = StepTime::NotDone(vm.device_size()?);
                rows.push(Row { step, memory: self.plug, time });
                break;
            };
            rows.push(Row { step, memory: self.plug, time: StepTime::Resize(resize) });
            if target != Bytes::ZERO && self.touched_memory().is_some() {
                progress.set_message("the guest writes to the plugged memory");
                rows.push(wait_until_touched(vm)?);
                if self.balloon {
                    progress.set_message("the guest frees and reports the memory");
                    rows.push(balloon::wait_until_reported(vm)?);
                }
            }
        }
        Ok(rows)
    }

    /// Makes one more change of the memory, after which the guest ends. Without this extra change,
    /// the guest would end while the last step is still measured. Returns the size of the metadata
    /// that the guest has written, if the guest has reported it.
    fn end(&self, mut vm: Vm) -> Result<Option<Bytes>> {
        let plugged = vm.device_size()?;
        vm.request(if plugged == Bytes::ZERO { self.block_size } else { Bytes::ZERO })?;
        Ok(vm.finish()?)
    }
}
