//! Finds the step in which a run hangs. The kernel records its steps and its progress; the timer
//! interrupt counts the ticks without progress.

use core::fmt;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// A step of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Step {
    /// Waiting for the host. This step may take any time.
    Idle,
    /// Reading the loader's and the firmware's tables.
    Boot,
    /// Looking for devices.
    Discovery,
    /// Setting up the virtio-mem device.
    Device,
    /// Growing or shrinking towards the device's target.
    Resize,
    /// Filling frames with patterns.
    Touch,
    /// Checking the patterns.
    Verify,
    /// Making, checking or freeing objects on the heap.
    Heap,
    /// Describing persistent memory, or checking its descriptors.
    Nvdimm,
    /// Checking a point of a device.
    Check,
}

impl Step {
    const ALL: [Step; 10] = [
        Step::Idle,
        Step::Boot,
        Step::Discovery,
        Step::Device,
        Step::Resize,
        Step::Touch,
        Step::Verify,
        Step::Heap,
        Step::Nvdimm,
        Step::Check,
    ];
}

/// Counts timer ticks without progress. All accesses are relaxed, because no other data depend on
/// these values.
pub struct Watchdog {
    step: AtomicU8,
    ticks: AtomicU32,
    limit: AtomicU32,
}

impl Watchdog {
    /// Makes a watchdog without a limit.
    #[must_use]
    pub const fn new() -> Self {
        Watchdog {
            step: AtomicU8::new(Step::Boot as u8),
            ticks: AtomicU32::new(0),
            limit: AtomicU32::new(u32::MAX),
        }
    }

    /// Sets the number of ticks without progress after which a step counts as hanging.
    pub fn set_limit(&self, ticks: u32) {
        self.limit.store(ticks, Relaxed);
    }

    /// Records the start of a step.
    pub fn enter(&self, step: Step) {
        self.step.store(step as u8, Relaxed);
        self.progress();
    }

    /// Records progress.
    pub fn progress(&self) {
        self.ticks.store(0, Relaxed);
    }

    /// Returns the step that was entered last.
    pub fn step(&self) -> Step {
        let number = self.step.load(Relaxed);
        Step::ALL.into_iter().find(|&step| step as u8 == number).unwrap_or(Step::Boot)
    }

    /// Counts a timer tick. Returns the step that hangs, if one does.
    pub fn tick(&self) -> Option<Step> {
        let step = self.step();
        let ticks = self.ticks.load(Relaxed).saturating_add(1);
        self.ticks.store(ticks, Relaxed);
        (step != Step::Idle && ticks >= self.limit.load(Relaxed)).then_some(step)
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Idle => "idle",
            Step::Boot => "boot",
            Step::Discovery => "device discovery",
            Step::Device => "device set-up",
            Step::Resize => "resize",
            Step::Touch => "touch",
            Step::Verify => "verify",
            Step::Heap => "heap",
            Step::Nvdimm => "nvdimm",
            Step::Check => "check",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_without_progress_is_reported() {
        let watchdog = Watchdog::new();
        watchdog.set_limit(3);
        watchdog.enter(Step::Touch);
        assert_eq!([watchdog.tick(), watchdog.tick()], [None, None]);
        watchdog.progress();
        assert_eq!(
            [watchdog.tick(), watchdog.tick(), watchdog.tick()],
            [None, None, Some(Step::Touch)]
        );
    }

    #[test]
    fn the_idle_step_may_take_any_number_of_ticks() {
        let watchdog = Watchdog::new();
        watchdog.set_limit(1);
        assert_eq!(watchdog.tick(), Some(Step::Boot));
        watchdog.enter(Step::Idle);
        assert_eq!([watchdog.tick(), watchdog.tick()], [None, None]);
    }

    #[test]
    fn every_step_converts_to_its_number_and_back() {
        let watchdog = Watchdog::new();
        for step in Step::ALL {
            watchdog.enter(step);
            assert_eq!(watchdog.step(), step);
        }
    }
}
