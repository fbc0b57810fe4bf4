//! Measurements of a kernel while its host changes its memory.

use super::Kernel;
use crate::{
    qemu::{Balloon, Config, Event, Resize, Vm},
    resident::{Watch, cpu_time, resident},
};
use anyhow::{Context, Result, ensure};
use hotmem::Bytes;
use std::{thread::sleep, time::Duration};

/// A kernel's use of memory that was plugged and unplugged.
#[derive(Debug)]
pub struct Used {
    /// The memory that the kernel found at boot.
    pub boot_memory: Bytes,
    /// The plug.
    pub grown: Resize,
    /// The memory that the kernel wrote and read after the plug.
    pub used: Bytes,
    /// The unplug.
    pub shrunk: Resize,
    /// The memory that the device still has plugged after the unplug.
    pub left: Bytes,
}

/// The memory that the host has committed for a guest that reports its free memory.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The maximum, while the memory was in use.
    pub in_use: Bytes,
    /// The memory that the guest reported.
    pub reported: Bytes,
    /// The committed memory after the report.
    pub free: Bytes,
    /// The guest's online memory after the device has unplugged all.
    pub online: Bytes,
}

/// The measurements that a kernel makes of its own allocator.
#[derive(Debug)]
pub struct Segments {
    /// The memory that is free after boot.
    pub free: Bytes,
    /// The name of a segment, such as `4 frames`, and the instructions to allocate and free it.
    pub instructions: Vec<(String, u64)>,
}

impl Kernel {
    /// Plugs memory, waits until the guest has used all of it, and unplugs it.
    ///
    /// # Errors
    /// The machine or the guest failed.
    pub fn plug_and_unplug(&self, memory: Bytes) -> Result<Used> {
        let mut vm = Vm::start(&self.config(memory))?;
        let (boot_memory, _) = vm.wait("boot", found_at_boot)?;
        let grown = vm.resize(memory)?;
        let (used, _) = vm.wait("the use of the memory", verified)?;
        let shrunk = vm.resize(Bytes::ZERO)?;
        let left = vm.device_size()?;
        end(vm)?;
        Ok(Used { boot_memory, grown, used, shrunk, left })
    }

    /// Measures the time from the host's request to the first allocation in the plugged memory,
    /// `times` times. Between requests the CPU must halt.
    ///
    /// # Errors
    /// The machine or the guest failed.
    pub fn first_allocations(&self, times: usize) -> Result<Vec<Duration>> {
        let memory = Bytes::gib(1);
        let mut vm = Vm::start(&self.config(memory))?;
        vm.wait("boot", found_at_boot)?;
        let mut measured = Vec::new();
        for _ in 0..times {
            ensure!(halts(vm.pid())?, "{} does not halt while it has nothing to do", self.name);
            let asked = vm.started().elapsed();
            vm.request(memory)?;
            let touched = |event: &Event| matches!(event, Event::Touched { .. }).then_some(());
            let ((), at) = vm.wait("the first allocation", touched)?;
            vm.wait("the use of all", verified)?;
            vm.resize(Bytes::ZERO)?;
            measured.push(at - asked);
        }
        end(vm)?;
        Ok(measured)
    }

    /// Boots a kernel that measures its allocator, on a machine where an instruction takes a
    /// nanosecond, and returns the given number of its figures.
    ///
    /// # Errors
    /// The machine or the guest failed.
    pub fn measure_segments(&self, figures: usize) -> Result<Segments> {
        let mut vm = Vm::start(&Config { icount: true, ..self.config(Bytes::ZERO) })?;
        let (free, _) = vm.wait("boot", found_at_boot)?;
        let measured = |event: &Event| match event {
            Event::Measured { what, value } => Some((what.clone(), *value)),
            _ => None,
        };
        let figures = (0..figures).map(|_| vm.wait("a figure", measured).map(|found| found.0));
        let instructions = figures.collect::<Result<_, _>>()?;
        vm.finish()?;
        Ok(Segments { free, instructions })
    }

    /// Lets the guest use memory, free it and report it to the host.
    ///
    /// # Errors
    /// The machine or the guest failed.
    pub fn report_free(&self, memory: Bytes) -> Result<Held> {
        let config = Config { balloon: Balloon::Reports, ..self.config(memory) };
        let mut vm = Vm::start(&config)?;
        let watch = Watch::start(vm.pid(), Duration::from_millis(5));
        vm.wait("boot", found_at_boot)?;
        vm.resize(memory)?;
        vm.wait("the use", verified)?;
        let reported = |event: &Event| match event {
            Event::Reported { bytes, .. } => Some(Bytes(*bytes)),
            _ => None,
        };
        let (reported, _) = vm.wait("reports of what was used", reported)?;
        let free = resident(vm.pid()).context("QEMU has ended")?;
        let in_use = watch.finish().iter().map(|sample| sample.resident).max();
        let in_use = in_use.context("QEMU's memory was never seen")?;
        // Reported memory can be used again, and can be unplugged.
        let online = vm.resize(Bytes::ZERO)?.online;
        end(vm)?;
        Ok(Held { in_use, reported, free, online })
    }
}

/// Returns the memory that a guest found at boot, or the memory that was free then, if the event
/// reports one of them.
pub fn found_at_boot(event: &Event) -> Option<Bytes> {
    match event {
        Event::Boot { boot_memory, .. } => Some(Bytes(*boot_memory)),
        _ => None,
    }
}

/// Returns how much memory a guest has written and read, if the event reports it.
pub fn verified(event: &Event) -> Option<Bytes> {
    match event {
        Event::Verified { bytes } => Some(Bytes(*bytes)),
        _ => None,
    }
}

/// Returns whether QEMU soon uses less than a tenth of a CPU for a while, as it does when its guest
/// halts.
fn halts(qemu: u32) -> Result<bool> {
    let period = Duration::from_millis(500);
    for _ in 0..20 {
        let before = cpu_time(qemu).context("QEMU has ended")?;
        sleep(period);
        if cpu_time(qemu).context("QEMU has ended")? - before < period / 10 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Tells the guest that there are no more requests, and waits until it ends and reports success.
///
/// # Errors
/// The machine or the guest failed.
pub fn end(mut vm: Vm) -> Result<()> {
    vm.request(Bytes::mib(2))?;
    vm.finish()?;
    Ok(())
}
