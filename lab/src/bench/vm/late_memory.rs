//! Boots a guest on a machine without a virtio-mem device. The machine has the memory from the start, and
//! the guest tells its engine of it after boot, and removes it again.

use super::measure::{Bench, INSTRUCTIONS, TIME};
use crate::{
    guest::{Guest, Policy},
    qemu::{Event, Vm},
};
use anyhow::Result;
use hotmem::Bytes;
use std::time::Duration;

impl Bench<'_> {
    /// Measures how the guest adds the memory, and how it removes it, none of it in use.
    pub(super) fn measure_late(
        &mut self,
        guest: Guest,
        policy: Policy,
        size: Bytes,
        case: &str,
    ) -> Result<()> {
        let config = self.guests.config(guest, policy, size)?;
        let mut vm = Vm::start(&config.with_guest_option("exit", "resizes:2"))?;
        let added = |event: &Event| match *event {
            Event::LateAdded { us, .. } => Some(us),
            _ => None,
        };
        let removed = |event: &Event| match *event {
            Event::LateRemoved { us, .. } => Some(us),
            _ => None,
        };
        let steps = [
            ("plug", vm.wait("addition of the memory", added)?.0),
            ("unplug", vm.wait("removal of the memory", removed)?.0),
        ];
        vm.finish()?;
        for (step, us) in steps {
            let in_guest = Duration::from_micros(us);
            let (metric, value) = if self.args.machine.counts_instructions() {
                (INSTRUCTIONS, in_guest.as_nanos() as f64)
            } else {
                (TIME, in_guest.as_secs_f64())
            };
            self.sample.add(&format!("{case}/{step}"), &guest.to_string(), metric, value);
        }
        Ok(())
    }
}
