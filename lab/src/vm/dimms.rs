//! `hotmem vm --dimms N`, which inserts the memory as DIMMs by ACPI's memory slots.

use super::{
    Args,
    rows::{Row, StepTime},
    touched::wait_until_touched,
};
use crate::{
    guest::Guests,
    qemu::{Config, Event, Vm},
};
use anyhow::{Result, bail};
use hotmem::Bytes;
use std::time::{Duration, Instant};

/// The size of the DIMM whose insertion ends the guest after the last step. Without it, the guest
/// would end while that step is still measured.
const LAST_DIMM: Bytes = Bytes::mib(128);

/// What a run with DIMMs does.
pub(super) struct Plan<'a> {
    pub(super) args: &'a Args,
    /// The number of DIMMs.
    pub(super) count: u32,
}

impl Plan<'_> {
    /// Returns the size of each DIMM.
    fn size(&self) -> Bytes {
        Bytes(self.args.plug.0 / u64::from(self.count))
    }

    /// Checks the DIMMs' size. QEMU refuses other sizes, because the host maps memory by pages of 2
    /// MiB.
    fn check(&self) -> Result<()> {
        let (count, memory) = (self.count, self.args.plug);
        if memory.0 == 0 || !memory.0.is_multiple_of(u64::from(count) * Bytes::mib(2).0) {
            bail!("--dimms {count}: {memory} cannot be divided into DIMMs of whole 2 MiB");
        }
        Ok(())
    }

    /// Returns the machine: it has no virtio-mem device, and the guest ends after all steps.
    pub(super) fn config(&self, guests: &Guests) -> Result<Config> {
        self.check()?;
        let config = guests.config(self.args.guest, self.args.policy, Bytes::ZERO)?;
        let events = self.count * self.args.resize_count() + 1;
        let config = Config {
            // Without a node, QEMU has no proximity domain for the slots.
            nodes: vec![config.boot_memory],
            memory_slots: self.count + 1,
            max_memory: Some(config.boot_memory + self.args.plug + LAST_DIMM),
            ..config.with_guest_option("exit", format!("resizes:{events}"))
        };
        Ok(match self.args.touched_memory() {
            Some(size) => config.with_touched_memory(size),
            None => config,
        })
    }

    /// Waits until the guest has booted. It has no device to wait for.
    pub(super) fn wait_until_ready(&self, vm: &mut Vm) -> Result<()> {
        vm.wait("boot", |event| matches!(event, Event::Boot { .. }).then_some(()))?;
        Ok(())
    }

    /// Inserts the DIMMs, and removes and inserts them again.
    pub(super) fn change_memory(&self, vm: &mut Vm) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        let steps = ["insert", "remove", "insert again"];
        for step in steps.into_iter().take(self.args.resize_count() as usize) {
            let started = Instant::now();
            let in_guest = match step {
                "remove" => self.remove(vm)?,
                _ => Some(self.insert(vm)?),
            };
            let time = StepTime::Dimms { recognised: started.elapsed(), in_guest };
            rows.push(Row { step, memory: self.args.plug, time });
            if step != "remove" && self.args.touched_memory().is_some() {
                rows.push(wait_until_touched(vm)?);
            }
        }
        Ok(rows)
    }

    /// Inserts all DIMMs at once. Returns the time that the guest needed.
    fn insert(&self, vm: &mut Vm) -> Result<Duration> {
        for n in 0..self.count {
            vm.insert_dimm(&n.to_string(), self.size(), 0)?;
        }
        let mut in_guest = Duration::ZERO;
        for _ in 0..self.count {
            in_guest += vm.wait_for_added_dimm()?.1;
        }
        Ok(in_guest)
    }

    fn remove(&self, vm: &mut Vm) -> Result<Option<Duration>> {
        for n in 0..self.count {
            vm.remove_dimm(&n.to_string())?;
        }
        for _ in 0..self.count {
            vm.wait_for_removed_dimm()?;
        }
        for n in 0..self.count {
            vm.free_dimm(&n.to_string())?;
        }
        Ok(None)
    }

    /// Ends the guest. Returns the size of the metadata that it has written.
    pub(super) fn end(&self, mut vm: Vm) -> Result<Option<Bytes>> {
        vm.insert_dimm("last", LAST_DIMM, 0)?;
        Ok(vm.finish()?)
    }
}
