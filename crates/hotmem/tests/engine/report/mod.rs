//! Tests free page reporting.

mod bounded;
mod failures;
mod instructions;
mod pace;
mod pins;
mod starve;
mod what;

use hotmem::report::{Batch, Contents, Reporter, ReporterError, Settings, Step};
use hotmem::{
    AllocRequest, Announce, Blocker, BootMap, BootRange, Budget, Bytes, Frames, Hotplug, MAX_PINS,
    NoHooks, NodeChoice, NodeId, OnlineType, PfnRange, Platform, Progress, Why,
    geometry::FRAME_SIZE,
};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, pfn, range};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The numbers of sections of boot memory, and of all memory.
const BOOT: u64 = 2;
const ALL: u64 = 4;

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

type Machine<'m> = Frames<&'m WakeupCount>;

/// Runs `test` on a machine of a few sections. All frames except metadata are free.
fn on_machine(test: impl FnOnce(&Machine<'_>, &mut Hotplug<'_, &WakeupCount>, &WakeupCount)) {
    on_machine_with_node(NodeId::ZERO, test);
}

/// Runs `test` on a machine like that of [`on_machine`], on which memory that can be plugged is on
/// the node `plugged`.
fn on_machine_with_node(
    plugged: NodeId,
    test: impl FnOnce(&Machine<'_>, &mut Hotplug<'_, &WakeupCount>, &WakeupCount),
) {
    on_booted(BOOT, ALL - BOOT, |frames, hotplug, wakeups| {
        let absent = range(BOOT * SECTION, (ALL - BOOT) * SECTION);
        hotplug.announce(Announce { node: plugged, ..absent.into() }).unwrap();
        test(frames, hotplug, wakeups);
    });
}

/// Runs `test` on a machine of `sections` sections, with memory for `more` sections above them.
fn on_booted(
    sections: u64,
    more: u64,
    test: impl FnOnce(&Machine<'_>, &mut Hotplug<'_, &WakeupCount>, &WakeupCount),
) {
    let wakeups = WakeupCount::default();
    let memory = Memory::new((sections + more) * SECTION);
    let frames = Frames::new(&wakeups);
    let ram = [BootRange { start: 0, len: Bytes(sections * SECTION * FRAME_SIZE) }];
    let mut hotplug =
        hotmem_testkit::start(&frames, memory.direct_map(), &BootMap::of_ram(&ram)).unwrap();
    test(&frames, &mut hotplug, &wakeups);
    frames.validated().unwrap();
}

/// Returns settings by which the reporter reports all free memory at once.
fn at_once() -> Settings {
    Settings { share: 1, ..Settings::EAGER }
}

/// Makes a reporter that reports all free memory at once.
fn eager<'f, P: Platform>(frames: &'f Frames<P>) -> Reporter<'f, P> {
    Reporter::new(frames, at_once(), Contents::Undefined).unwrap()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Steps until the reporter has nothing to do at this time. The host accepts every batch. Returns
/// the ranges that were reported, and the last step.
fn settle<P: Platform>(reporter: &mut Reporter<'_, P>, now: Duration) -> (Vec<PfnRange>, Step) {
    let mut reported = Vec::new();
    loop {
        match reporter.step(now) {
            Step::Ready(Ok(batch)) => {
                reported.extend_from_slice(batch.ranges());
                reporter.reported(batch).unwrap();
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
fn count_blocks(ranges: &[PfnRange]) -> u64 {
    ranges.iter().map(|range| range.frames() / PAGEBLOCK).sum()
}

/// Returns the size of this many pageblocks.
fn frames_of(blocks: u64) -> Bytes {
    Bytes(blocks * PAGEBLOCK * FRAME_SIZE)
}
