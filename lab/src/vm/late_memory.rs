//! `hotmem vm --arch riscv64`, whose machine has the memory from the start: QEMU has no virtio-mem device
//! there. The guest does not tell its engine of the memory at boot, adds it then, and removes it.

use super::{
    Args,
    balloon::{self, Resident},
    outcome::Outcome,
    rows::{Row, StepTime},
    touched::wait_until_touched,
};
use crate::{
    guest::Guests,
    progress,
    qemu::{Architecture, Config, Event, Vm},
    resident::Sampler,
    size,
};
use anyhow::Result;
use std::time::Duration;

/// Boots the guest, waits until it has added and removed the memory, and prints the time of each step.
pub(super) fn run(args: &Args) -> Result<()> {
    let progress = progress::spinner();
    progress.set_message("looking for the guest's image");
    let find = || args.machine.guests(Architecture::Riscv64, &[args.guest], &[args.plug]);
    let guests = progress.suspend(find)?;
    progress.set_message("booting");
    let mut vm = Vm::start(&config(args, &guests)?)?;
    let first_line = vm.first_line()?;
    let sampler = args.balloon.then(|| balloon::sampler(&vm));
    progress.set_message("the guest adds and removes memory");
    let rows = wait_for_steps(args, &mut vm)?;
    let (started, samples) = (vm.started(), sampler.map(Sampler::finish));
    vm.finish()?;
    progress.finish_and_clear();
    let outcome = Outcome {
        boot_memory: guests.boot_memory(),
        first_line,
        remark: Some(format!(
            "QEMU has no virtio-mem device on riscv64: the machine had {} more from the start, which the \
             guest did not tell its engine of at boot",
            size::short(args.plug)
        )),
        rows,
        resident: samples.map(|samples| Resident { started, samples }),
        metadata: None,
        is_checked: true,
    };
    outcome.print(args)
}

/// Returns the machine, whose guest takes the steps by itself and ends after them.
fn config(args: &Args, guests: &Guests) -> Result<Config> {
    let config = guests.config(args.guest, args.policy, args.plug)?;
    let config = config.with_guest_option("exit", format!("resizes:{}", args.resize_count()));
    let config = match args.touched_memory() {
        Some(size) => config.with_touched_memory(size),
        None => config,
    };
    Ok(if args.balloon { balloon::config(config) } else { config })
}

fn wait_for_steps(args: &Args, vm: &mut Vm) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for step in ["add", "remove", "add again"].into_iter().take(args.resize_count() as usize) {
        let is_removal = step == "remove";
        let done = |event: &Event| match *event {
            Event::LateAdded { us, .. } if !is_removal => Some(us),
            Event::LateRemoved { us, .. } if is_removal => Some(us),
            _ => None,
        };
        let time = StepTime::InGuest(Duration::from_micros(vm.wait(step, done)?.0));
        rows.push(Row { step, memory: args.plug, time });
        if !is_removal && args.touched_memory().is_some() {
            rows.push(wait_until_touched(vm)?);
            if args.balloon {
                rows.push(balloon::wait_until_reported(vm)?);
            }
        }
    }
    Ok(rows)
}
