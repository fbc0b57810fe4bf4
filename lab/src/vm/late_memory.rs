//! `hotmem vm --arch riscv64`, whose machine has the memory from the start: QEMU has no virtio-mem device
//! there. The guest does not tell its engine of the memory at boot, adds it then, and removes it.

use super::{
    rows::{self, Row, StepTime},
    touched::wait_until_touched,
};
use crate::{
    guest::{Guest, Machine, Policy},
    progress,
    qemu::{Architecture, Event, Vm},
    table::time,
};
use anyhow::Result;
use hotmem::Bytes;
use std::time::Duration;

/// What a run with late memory does.
pub(super) struct Plan<'a> {
    pub(super) machine: &'a Machine,
    pub(super) guest: Guest,
    pub(super) policy: Policy,
    pub(super) memory: Bytes,
    /// The number of steps: add, remove, and add again.
    pub(super) steps: u32,
    /// The memory that the guest writes to.
    pub(super) touch: Option<Bytes>,
    /// The time limit of a step of Linux, in seconds.
    pub(super) limit_s: u32,
}

/// Boots the guest, waits until it has added and removed the memory, and prints the time of each step.
pub(super) fn run(plan: &Plan<'_>) -> Result<()> {
    let progress = progress::spinner();
    progress.set_message("looking for the guest's image");
    let find = || plan.machine.guests(Architecture::Riscv64, &[plan.guest], &[plan.memory]);
    let guests = progress.suspend(find)?;
    // The guest takes the steps by itself, and ends after them.
    let config = guests.config(plan.guest, plan.policy, plan.memory)?;
    let config = config.with_guest_option("exit", format!("resizes:{}", plan.steps));
    let config = match plan.touch {
        Some(size) => config.with_touched_memory(size),
        None => config,
    };
    progress.set_message("booting");
    let mut vm = Vm::start(&config)?;
    let first_line = vm.first_line()?;
    progress.set_message("the guest adds and removes memory");
    let rows = wait_for_steps(plan, &mut vm)?;
    vm.finish()?;
    progress.finish_and_clear();
    let boot_memory = guests.boot_memory();
    say!("guest of {boot_memory}, first line {} after QEMU's start", time(first_line))?;
    say!(
        "QEMU has no virtio-mem device on riscv64: the machine had {} more from the start, which the guest \
         did not tell its engine of at boot",
        plan.memory
    )?;
    rows::print(&rows, plan.limit_s)?;
    if plan.machine.counts_instructions() {
        say!("in the guest, 1 ns is one instruction")?;
    }
    say!("the guest's own checks: PASS")?;
    Ok(())
}

fn wait_for_steps(plan: &Plan<'_>, vm: &mut Vm) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for step in ["add", "remove", "add again"].into_iter().take(plan.steps as usize) {
        let is_removal = step == "remove";
        let done = |event: &Event| match *event {
            Event::LateAdded { us, .. } if !is_removal => Some(us),
            Event::LateRemoved { us, .. } if is_removal => Some(us),
            _ => None,
        };
        let time = StepTime::InGuest(Duration::from_micros(vm.wait(step, done)?.0));
        rows.push(Row { step, memory: plan.memory, time });
        if !is_removal && plan.touch.is_some() {
            rows.push(wait_until_touched(vm)?);
        }
    }
    Ok(rows)
}
