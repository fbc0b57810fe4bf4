//! `hotmem vm --arch riscv64`, whose machine has the memory from the start: QEMU has no virtio-mem device
//! there. The guest does not tell its engine of the memory at boot, adds it then, and removes it.

use super::{
    Args,
    rows::{self, Row, StepTime},
    touched::wait_until_touched,
};
use crate::{
    progress,
    qemu::{Event, Vm},
    table::time,
};
use anyhow::Result;
use std::time::Duration;

/// Boots the guest, waits until it has added and removed the memory, and prints the time of each step.
pub(super) fn run(args: &Args) -> Result<()> {
    let progress = progress::spinner();
    progress.set_message("looking for the guest's image");
    let find = || args.machine.guests(args.architecture(), &[args.guest], &[args.plug]);
    let guests = progress.suspend(find)?;
    // The guest takes the steps by itself, and ends after them.
    let config = guests.config(args.guest, args.policy, args.plug)?;
    let config = config.with_guest_option("exit", format!("resizes:{}", args.resize_count()));
    let config = match args.touched_memory() {
        Some(size) => config.with_touched_memory(size),
        None => config,
    };
    progress.set_message("booting");
    let mut vm = Vm::start(&config)?;
    let first_line = vm.first_line()?;
    progress.set_message("the guest adds and removes memory");
    let rows = wait_for_steps(args, &mut vm)?;
    vm.finish()?;
    progress.finish_and_clear();
    let boot_memory = guests.boot_memory();
    say!("guest of {boot_memory}, first line {} after QEMU's start", time(first_line))?;
    say!(
        "QEMU has no virtio-mem device on riscv64: the machine had {} more from the start, which the guest \
         did not tell its engine of at boot",
        args.plug
    )?;
    rows::print(&rows, args.limit)?;
    if args.machine.counts_instructions() {
        say!("in the guest, 1 ns is one instruction")?;
    }
    say!("the guest's own checks: PASS")?;
    Ok(())
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
        }
    }
    Ok(rows)
}
