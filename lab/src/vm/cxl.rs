//! `hotmem vm --cxl N`, which makes the memory of CXL devices RAM and device memory again.

use super::{
    Args,
    outcome::Outcome,
    rows::{Row, StepTime},
    touched::wait_until_touched,
};
use crate::{
    progress,
    qemu::{Architecture, Config, Vm},
};
use anyhow::{Context, Result, bail};
use hotmem::Bytes;
use std::time::Instant;

const NO_QEMU: &str = "--cxl needs QEMU 10: `cargo xtask setup`";
/// The unit of devices.
const UNIT: u64 = 256 << 20;

/// What a run with CXL devices does.
pub(super) struct Plan<'a> {
    pub(super) args: &'a Args,
    /// The number of CXL devices, between which addresses alternate.
    pub(super) count: u8,
}

/// Boots the guest, changes its memory, and prints the time of each step.
pub(super) fn run(plan: &Plan<'_>) -> Result<()> {
    plan.check()?;
    let progress = progress::spinner();
    progress.set_message("looking for the guest's image");
    let find = || plan.args.machine.guests(Architecture::X86_64, &[plan.args.guest], &[]);
    let guests = progress.suspend(find)?;
    let config = plan.config(guests.config(plan.args.guest, plan.args.policy, Bytes::ZERO)?)?;
    let boot_memory = config.boot_memory;
    progress.set_message("booting");
    let mut vm = Vm::start(&config)?;
    let first_line = vm.first_line()?;
    vm.wait_for_cxl()?;
    progress.set_message("changing the memory");
    let rows = plan.change_memory(&mut vm)?;
    vm.command("end")?;
    vm.finish()?;
    progress.finish_and_clear();
    let outcome = Outcome {
        boot_memory,
        first_line,
        remark: None,
        rows,
        resident: None,
        metadata: None,
        is_checked: true,
    };
    outcome.print(plan.args)
}

impl Plan<'_> {
    fn check(&self) -> Result<()> {
        let (count, memory) = (u64::from(self.count), self.args.plug);
        if !count.is_power_of_two() || !memory.0.is_multiple_of(count * UNIT) {
            bail!("--cxl {count}: {memory} cannot be divided so into devices of whole 256 MiB");
        }
        Ok(())
    }

    fn config(&self, config: Config) -> Result<Config> {
        let devices = vec![Bytes(self.args.plug.0 / u64::from(self.count)); self.count.into()];
        let config = config.with_reconfigurable_cxl(&devices).context(NO_QEMU)?.with_commands();
        let boot_memory = self.args.machine.boot_memory_or(config.boot_memory);
        let config = Config { boot_memory, ..config }.with_guest_option("release", "off");
        Ok(match self.args.touched_memory() {
            Some(size) => config.with_touched_memory(size),
            None => config,
        })
    }

    fn change_memory(&self, vm: &mut Vm) -> Result<Vec<Row>> {
        let to_ram = format!("system-ram 0 {}", self.args.policy);
        let steps = [
            ("to RAM", &*to_ram),
            ("to device memory", "devdax 0 force"),
            ("to RAM again", &*to_ram),
        ];
        let mut rows = Vec::new();
        for (step, command) in steps.into_iter().take(self.args.resize_count() as usize) {
            let started = Instant::now();
            let in_guest = Some(vm.reconfigure(command)?.time);
            let time = StepTime::Dimms { recognised: started.elapsed(), in_guest };
            rows.push(Row { step, memory: self.args.plug, time });
            if command == to_ram && self.args.touched_memory().is_some() {
                vm.command("touch")?;
                rows.push(wait_until_touched(vm)?);
            }
        }
        Ok(rows)
    }
}
