//! Measures a port's kernel while the host changes its memory.

use super::Kernel;
use crate::{
    qemu::{Balloon, Config, Event, Resize, Vm},
    resident::{Sampler, cpu_time, resident},
};
use anyhow::{Context, Result, ensure};
use hotmem::Bytes;
use std::{thread::sleep, time::Duration};

/// The results of plugging memory, using it, and unplugging it.
#[derive(Debug)]
pub struct PlugCycle {
    /// The boot memory that the kernel has reported.
    pub boot_memory: Bytes,
    /// The plug.
    pub plug: Resize,
    /// The size of the memory that the kernel wrote and checked after the plug.
    pub checked_memory: Bytes,
    /// The unplug.
    pub unplug: Resize,
    /// The size that the device still has plugged after the unplug.
    pub still_plugged: Bytes,
}

/// The memory that the host has committed for a guest with free page reporting.
#[derive(Clone, Copy, Debug)]
pub struct CommittedMemory {
    /// The largest committed size, while the guest used its memory.
    pub largest: Bytes,
    /// The size that the guest reported.
    pub reported_memory: Bytes,
    /// The committed size after the report.
    pub after_report: Bytes,
    /// The size of the guest's online memory after the device has unplugged all its memory.
    pub online_after_unplug: Bytes,
}

/// The instructions that a kernel's allocator takes for segments (OSTD: ranges of frames).
#[derive(Debug)]
pub struct Segments {
    /// The size of the memory that is free after boot.
    pub free_memory: Bytes,
    /// The name of each segment, such as `4 frames`, and the number of instructions to allocate and
    /// free it.
    pub instructions: Vec<(String, u64)>,
}

impl Kernel {
    /// Plugs `memory`, waits until the guest has written and checked it, and unplugs it.
    ///
    /// # Errors
    /// The machine or the guest fails.
    pub fn plug_and_unplug(&self, memory: Bytes) -> Result<PlugCycle> {
        let mut vm = Vm::start(&self.config(memory))?;
        let (boot_memory, _) = vm.wait("boot", booted_with)?;
        let plug = vm.resize(memory)?;
        let (checked_memory, _) = vm.wait("the use of the memory", verified)?;
        let unplug = vm.resize(Bytes::ZERO)?;
        let still_plugged = vm.device_size()?;
        end(vm)?;
        Ok(PlugCycle { boot_memory, plug, checked_memory, unplug, still_plugged })
    }

    /// Measures the time from the host's request to the first allocation in the plugged memory, in
    /// `runs` runs. Before each request, the guest must have nothing to do and halt its CPU.
    ///
    /// # Errors
    /// The machine or the guest fails.
    pub fn first_allocations(&self, runs: usize) -> Result<Vec<Duration>> {
        let memory = Bytes::gib(1);
        let mut vm = Vm::start(&self.config(memory))?;
        vm.wait("boot", booted_with)?;
        let mut times = Vec::new();
        for _ in 0..runs {
            ensure!(
                halts(vm.pid())?,
                "{} does not halt its CPU while it has nothing to do",
                self.name
            );
            let requested = vm.started().elapsed();
            vm.request(memory)?;
            let touched = |event: &Event| matches!(event, Event::Touched { .. }).then_some(());
            let ((), allocated) = vm.wait("the first allocation", touched)?;
            vm.wait("the use of all memory", verified)?;
            vm.resize(Bytes::ZERO)?;
            times.push(allocated - requested);
        }
        end(vm)?;
        Ok(times)
    }

    /// Boots a kernel that measures its allocator, and returns its first `count` figures. An
    /// instruction takes a nanosecond of the guest's time, so that the kernel's clock counts
    /// instructions.
    ///
    /// # Errors
    /// The machine or the guest fails.
    pub fn measure_segments(&self, count: usize) -> Result<Segments> {
        let mut vm = Vm::start(&Config { icount: true, ..self.config(Bytes::ZERO) })?;
        let (free_memory, _) = vm.wait("boot", booted_with)?;
        let measured = |event: &Event| match event {
            Event::Measured { quantity, value } => Some((quantity.clone(), *value)),
            _ => None,
        };
        let figures = (0..count).map(|_| vm.wait("a figure", measured).map(|found| found.0));
        let instructions = figures.collect::<Result<_, _>>()?;
        vm.finish()?;
        Ok(Segments { free_memory, instructions })
    }

    /// Plugs `memory`, waits until the guest has used, freed and reported memory, and unplugs it.
    ///
    /// # Errors
    /// The machine or the guest fails.
    pub fn report_free(&self, memory: Bytes) -> Result<CommittedMemory> {
        let config = Config { balloon: Balloon::Reports, ..self.config(memory) };
        let mut vm = Vm::start(&config)?;
        let sampler = Sampler::start(vm.pid(), Duration::from_millis(5));
        vm.wait("boot", booted_with)?;
        vm.resize(memory)?;
        vm.wait("the use", verified)?;
        let reported = |event: &Event| match event {
            Event::Reported { bytes, .. } => Some(Bytes(*bytes)),
            _ => None,
        };
        let (reported_memory, _) = vm.wait("reports of what was used", reported)?;
        let after_report = resident(vm.pid()).context("QEMU has ended")?;
        let largest = sampler.finish().iter().map(|sample| sample.resident).max();
        let largest = largest.context("the sampler has no sample of QEMU's memory")?;
        // Reported memory can be unplugged, too.
        let online_after_unplug = vm.resize(Bytes::ZERO)?.online;
        end(vm)?;
        Ok(CommittedMemory { largest, reported_memory, after_report, online_after_unplug })
    }
}

/// Returns the boot memory that the event reports, or `None` if it is another event. A kernel that
/// measures segments reports its free memory after boot instead.
pub fn booted_with(event: &Event) -> Option<Bytes> {
    match event {
        Event::Boot { boot_memory, .. } => Some(Bytes(*boot_memory)),
        _ => None,
    }
}

/// Returns the size of the memory that the guest has written and checked, if the event reports it.
pub fn verified(event: &Event) -> Option<Bytes> {
    match event {
        Event::Verified { bytes } => Some(Bytes(*bytes)),
        _ => None,
    }
}

/// Returns whether QEMU uses less than a tenth of a CPU in one of the next 20 periods of 500 ms, as
/// it does while its guest halts.
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

/// Makes the last request, after which the guest ends, and waits for the guest's verdict.
///
/// # Errors
/// The machine or the guest fails.
pub fn end(mut vm: Vm) -> Result<()> {
    vm.request(Bytes::mib(2))?;
    vm.finish()?;
    Ok(())
}
