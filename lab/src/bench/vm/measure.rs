//! Boots a guest, plugs and unplugs its memory, and records the costs.

use super::{args::Args, memory_in_use::MemoryInUse};
use crate::{
    bench::record::{Metric, Sample},
    guest::{Guest, Guests, Policy},
    qemu::{Config, Resize, Vm},
    size,
};
use anyhow::{Result, bail, ensure};
use hotmem::Bytes;
use indicatif::ProgressBar;
use std::{
    thread,
    time::{Duration, Instant},
};

/// The time from the request until the guest reports the end of its work.
pub(super) const TIME: Metric = ("time", "s");
/// The time from the request until the device has plugged or unplugged everything.
const DEVICE_TIME: Metric = ("device_time", "s");
/// The guest's instructions for the request.
pub(super) const INSTRUCTIONS: Metric = ("instructions", "count");
/// The amount of memory that was still to be plugged or unplugged at the time limit.
pub(super) const NOT_CHANGED: Metric = ("left", "MiB");
/// The number of requests that the guest's driver made.
const REQUESTS: Metric = ("requests", "count");

/// The time from QEMU's start to the guest's first line.
pub(super) const FIRST_LINE: Metric = ("first_line", "s");

/// The time for which a warm-up waits after the device has finished, so that the guest finishes
/// too.
const WARM_UP_PAUSE: Duration = Duration::from_millis(300);

/// The state of a running bench.
pub(super) struct Bench<'a> {
    pub(super) args: &'a Args,
    pub(super) guests: Guests,
    pub(super) sample: &'a mut Sample,
    pub(super) progress: ProgressBar,
}

impl Bench<'_> {
    /// Measures plugging and unplugging in a boot in which the guest does not use the memory. Then
    /// measures one boot for each treatment of memory in use.
    pub(super) fn measure(
        &mut self,
        guest: Guest,
        policy: Policy,
        size: Bytes,
        case: &str,
    ) -> Result<()> {
        let config = self.guests.config(guest, policy, size)?;
        let warm_up = self.args.warm_up(policy, size);
        let mut vm = self.boot(guest, &config, warm_up)?;
        if self.resize(&mut vm, guest, size, &format!("{case}/plug"))? {
            self.resize(&mut vm, guest, Bytes::ZERO, &format!("{case}/unplug"))?;
        }
        drop(vm);

        let touch = self.args.touch.min(size);
        if touch == Bytes::ZERO || policy == Policy::Offline {
            return Ok(());
        }
        self.args.used.iter().try_for_each(|&used| {
            let case = format!("{case}/unplug-{}-{used}", size::short(touch));
            let warm_up = used.warm_up(warm_up);
            let mut vm = self.boot(guest, &used.config(guest, config.clone(), touch), warm_up)?;
            self.unplug_used(&mut vm, guest, used, (size, touch), &case)
        })
    }

    /// Plugs `size`, waits until the guest uses `touch` bytes of the memory, and measures
    /// unplugging all of `size`.
    fn unplug_used(
        &mut self,
        vm: &mut Vm,
        guest: Guest,
        used: MemoryInUse,
        (size, touch): (Bytes, Bytes),
        case: &str,
    ) -> Result<()> {
        if self.change(vm, guest, size)?.is_none() {
            return Ok(());
        }
        vm.wait("use of the memory", |event| used.is_in_use(guest, event).then_some(()))?;
        if !self.resize(vm, guest, Bytes::ZERO, case)? {
            return Ok(());
        }
        let Some(metric) = used.evidence_metric(guest) else { return Ok(()) };
        let (bytes, _) = vm.wait("evidence of what the guest did with the memory", |event| {
            used.evidence_bytes(event)
        })?;
        ensure!(
            bytes >= touch.0 / 10 * 9,
            "{case}: only {} of {touch} were {}",
            size::approximate(Bytes(bytes)),
            metric.0
        );
        self.sample.add(case, &guest.to_string(), metric, bytes as f64 / f64::from(1 << 20));
        Ok(())
    }

    /// Boots a guest and warms it up.
    fn boot(&mut self, guest: Guest, config: &Config, warm_up: Bytes) -> Result<Vm> {
        let mut vm = Vm::start(config)?;
        let first_line = vm.first_line()?;
        if guest == Guest::Hotmem && !self.args.machine.counts_instructions() {
            self.sample.add("boot", "hotmem", FIRST_LINE, first_line.as_secs_f64());
        }
        guest.wait_until_ready(&mut vm)?;
        if warm_up != Bytes::ZERO {
            self.warm_up(&mut vm, warm_up)?;
        }
        Ok(vm)
    }

    /// Plugs and unplugs `size` without a measurement. Later waits skip the guest's events about
    /// the warm-up.
    fn warm_up(&self, vm: &mut Vm, size: Bytes) -> Result<()> {
        for target in [size, Bytes::ZERO] {
            let deadline = Instant::now() + Duration::from_secs(self.args.limit.into());
            vm.request(target)?;
            while vm.device_size()? != target {
                if Instant::now() > deadline {
                    bail!("the warm-up did not reach {target} within the time limit");
                }
                thread::sleep(WARM_UP_PAUSE / 10);
            }
            thread::sleep(WARM_UP_PAUSE);
        }
        Ok(())
    }

    /// Changes the plugged memory to `target` and records the costs. Returns whether the change was
    /// done within the time limit.
    fn resize(&mut self, vm: &mut Vm, guest: Guest, target: Bytes, case: &str) -> Result<bool> {
        let resize = self.change(vm, guest, target)?;
        let subject = guest.to_string();
        let Some(resize) = resize else {
            let left = vm.device_size()?.0.abs_diff(target.0) >> 20;
            self.sample.add_stopped(case, &subject, TIME, self.args.limit.into());
            self.sample.add(case, &subject, NOT_CHANGED, left as f64);
            return Ok(false);
        };
        let mut add = |metric, value| self.sample.add(case, &subject, metric, value);
        if self.args.machine.counts_instructions() {
            add(INSTRUCTIONS, resize.in_guest.as_nanos() as f64);
        } else {
            add(TIME, resize.recognised.as_secs_f64());
            add(DEVICE_TIME, resize.device_done.as_secs_f64());
        }
        if guest.is_reference() {
            add(REQUESTS, resize.requests as f64);
        }
        Ok(true)
    }

    /// Changes the plugged memory to `target`. Returns `None` if a time limit applies and ends
    /// first.
    fn change(&self, vm: &mut Vm, guest: Guest, target: Bytes) -> Result<Option<Resize>> {
        Ok(match guest {
            Guest::Hotmem | Guest::HotmemWithDescriptors => Some(vm.resize(target)?),
            Guest::Linux => {
                vm.resize_within(target, Duration::from_secs(self.args.limit.into()))?
            }
        })
    }
}
