//! Tests free page reporting.

mod failures;
mod instructions;
mod pins;
mod report_delays;
mod slow_host;
mod step_cost;
mod unzeroed;
mod which_memory;
mod zeroed;

use hotmem::report::{Batch, Reporter, ReporterError, ReporterSettings, Step};
use hotmem::{
    AllocRequest, Announce, Blocker, BlockerKind, BootRange, Budget, Bytes, Contents, Frames,
    Hotplug, MAX_PINS, NoHooks, NodeChoice, NodeId, OnlineType, PfnRange, Platform, Progress,
    geometry::FRAME_SIZE,
};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, pfn, range};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The number of sections of boot memory.
const BOOT_SECTIONS: u64 = 2;
/// The number of sections of boot memory and of memory that can be plugged.
const ALL_SECTIONS: u64 = 4;

/// A platform that counts how often the engine wakes the reporter.
#[derive(Default)]
struct WakeupCount(AtomicU32);

impl Platform for &WakeupCount {
    fn cpu(&self) -> usize {
        0
    }

    fn wake_reporter(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type TestFrames<'m> = Frames<&'m WakeupCount>;

/// Runs `test` on an instance of a few sections. All frames except metadata are free.
fn with_instance(test: impl FnOnce(&TestFrames<'_>, &mut Hotplug<'_, &WakeupCount>, &WakeupCount)) {
    with_instance_on_node(NodeId::ZERO, test);
}

/// Runs `test` on the same instance as [`with_instance`], except that the memory that can be
/// plugged is on the node `plugged_node`.
fn with_instance_on_node(
    plugged_node: NodeId,
    test: impl FnOnce(&TestFrames<'_>, &mut Hotplug<'_, &WakeupCount>, &WakeupCount),
) {
    with_boot_sections(BOOT_SECTIONS, ALL_SECTIONS - BOOT_SECTIONS, |frames, hotplug, wakeups| {
        let absent = range(BOOT_SECTIONS * SECTION, (ALL_SECTIONS - BOOT_SECTIONS) * SECTION);
        hotplug.announce(Announce { node: plugged_node, ..absent.into() }).unwrap();
        test(frames, hotplug, wakeups);
    });
}

/// Runs `test` on an instance with `boot_sections` sections of boot memory. The test can announce
/// `absent_sections` sections above them, and add them.
fn with_boot_sections(
    boot_sections: u64,
    absent_sections: u64,
    test: impl FnOnce(&TestFrames<'_>, &mut Hotplug<'_, &WakeupCount>, &WakeupCount),
) {
    let wakeups = WakeupCount::default();
    let memory = Memory::new((boot_sections + absent_sections) * SECTION);
    let frames = Frames::new(&wakeups);
    let ram = [BootRange { start: 0, len: Bytes(boot_sections * SECTION * FRAME_SIZE) }];
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &ram).unwrap();
    test(&frames, &mut hotplug, &wakeups);
    frames.validated().unwrap();
}

/// Returns settings that let the reporter report all free memory without a delay.
fn immediate_settings() -> ReporterSettings {
    ReporterSettings { reporting_divisor: 1, ..ReporterSettings::EAGER }
}

/// Makes a reporter that reports all free memory without a delay.
fn eager_reporter<'f, P: Platform>(frames: &'f Frames<P>) -> Reporter<'f, P> {
    Reporter::new(frames, immediate_settings(), Contents::Undefined).unwrap()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Steps until the reporter has nothing to do at this time. The host accepts every batch. Returns
/// the ranges that were reported, and the last step.
fn report_until_idle<P: Platform>(
    reporter: &mut Reporter<'_, P>,
    now: Duration,
) -> (Vec<PfnRange>, Step) {
    let mut reported = Vec::new();
    loop {
        match reporter.step(now) {
            Step::Ready(Ok(batch)) => {
                reported.extend_from_slice(&batch);
                reporter.reported(batch);
            }
            Step::Working => {}
            step => return (reported, step),
        }
    }
}

/// Steps until the reporter sends a batch.
fn send<P: Platform>(reporter: &mut Reporter<'_, P>, now: Duration) -> Batch {
    loop {
        match reporter.step(now) {
            Step::Ready(Ok(batch)) => return batch,
            Step::Working => {}
            step => panic!("{step:?} instead of a batch"),
        }
    }
}

/// Returns the number of pageblocks in these ranges.
fn count_pageblocks(ranges: &[PfnRange]) -> u64 {
    ranges.iter().map(|range| range.frames() / PAGEBLOCK).sum()
}

/// Returns the size of this many pageblocks.
fn size_of_blocks(blocks: u64) -> Bytes {
    Bytes(blocks * PAGEBLOCK * FRAME_SIZE)
}
