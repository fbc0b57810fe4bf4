//! `hotmem vm --cxl N`, which makes the memory of CXL devices RAM and device memory again.

use super::{
    Args,
    outcome::Outcome,
    rows::{Row, StepTime},
    touched::wait_until_touched,
};
use crate::{
    progress,
    qemu::{Architecture, Config, Cxl, Emulator, Vm},
};
use anyhow::{Context, Result, bail};
use hotmem::Bytes;
use std::time::Instant;

/// The boot memory without descriptors of the devices' memory.
const BOOT_MEMORY: Bytes = Bytes::mib(128);
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
        let count = u64::from(self.count);
        // A page of descriptors for each compound, and page tables. The tails of compounds share a page.
        // The addresses need not begin at a whole GiB, so 1 GiB may have no whole compound.
        let is_large =
            self.args.plug > Bytes::gib(1) && self.args.plug.0.is_multiple_of(Bytes::gib(1).0);
        let (compound, share) = if is_large { ("1G", 16 << 10) } else { ("2M", 256) };
        let default = BOOT_MEMORY + Bytes((self.args.plug.0 / share).next_multiple_of(2 << 20));
        let devices = vec![Bytes(self.args.plug.0 / count); self.count.into()];
        let config = Config {
            emulator: Emulator::with_cxl().context("--cxl needs QEMU 10: `cargo xtask setup`")?,
            boot_memory: self.args.machine.boot_memory_or(default),
            cxl: Some(Cxl::volatile(&devices)),
            ..config
        };
        let config = config.with_guest_option("cxl", "devdax").with_guest_option("ways", count);
        let config =
            config.with_guest_option("align", compound).with_guest_option("tails", "shared");
        let config = config.with_guest_option("release", "off").with_commands();
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
