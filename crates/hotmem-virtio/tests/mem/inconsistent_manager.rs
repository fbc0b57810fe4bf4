//! Tests that the driver stops if the results of the memory manager do not match the calls.

use crate::device::Device;
use crate::memory::TestMemory;
use core::time::Duration;
use hotmem::{Pfn, PfnRange};
use hotmem_virtio::mem::{
    Driver, Failure, Features, Memory, Obstacle, Reachable, Run, Step, Transition, Unplug,
};

const MIB: u64 = 1 << 20;

/// A memory manager that changes correct results.
struct DistortingMemory {
    correct_memory: TestMemory,
    distort_region: fn(PfnRange) -> PfnRange,
    distort_run: fn(PfnRange) -> PfnRange,
    distort_prepared: fn(PfnRange) -> PfnRange,
}

impl Memory for DistortingMemory {
    fn announce(
        &mut self,
        region: PfnRange,
        unit: u64,
        node: Option<u16>,
    ) -> Result<Reachable, Obstacle> {
        let reachable = self.correct_memory.announce(region, unit, node)?;
        Ok(Reachable { range: (self.distort_region)(reachable.range), ..reachable })
    }

    fn transition(&self) -> Option<Transition> {
        self.correct_memory.transition()
    }

    fn divide(&mut self, at: Pfn) -> bool {
        self.correct_memory.divide(at)
    }

    fn run_at(&self, from: Pfn, within: PfnRange) -> Run {
        let run = self.correct_memory.run_at(from, within);
        Run { range: (self.distort_run)(run.range), ..run }
    }

    fn prepare_plug(&mut self, range: PfnRange, unit: u64) -> Result<PfnRange, Obstacle> {
        self.correct_memory.prepare_plug(range, unit).map(self.distort_prepared)
    }

    fn plugged(&mut self, range: PfnRange) {
        self.correct_memory.plugged(range);
    }

    fn plug_refused(&mut self, range: PfnRange) {
        self.correct_memory.plug_refused(range);
    }

    fn prepare_unplug(&mut self, unplug: Unplug) -> Result<PfnRange, Obstacle> {
        self.correct_memory.prepare_unplug(unplug).map(self.distort_prepared)
    }

    fn unplugged(&mut self, range: PfnRange) {
        self.correct_memory.unplugged(range);
    }

    fn unplug_refused(&mut self, range: PfnRange) {
        self.correct_memory.unplug_refused(range);
    }
}

/// Plugs half of a device with correct results, and then resizes it to `target` with changed results.
/// Returns the failure, if the driver failed.
fn failure_with(
    block_size: u64,
    target: u64,
    [distort_region, distort_run, distort_prepared]: [fn(PfnRange) -> PfnRange; 3],
) -> Option<Failure> {
    let mut device = Device::new(block_size, 4 << 30, 64 * MIB);
    let mut driver = Driver::new(&device.read_config(), Features::empty()).unwrap();
    let correct_memory = TestMemory::new(driver.config().managed(), driver.config().unit_frames());
    let mut memory = DistortingMemory {
        correct_memory,
        distort_region,
        distort_run: unchanged,
        distort_prepared: unchanged,
    };
    for (target, is_distorted) in [(32 * MIB, false), (target, true)] {
        device.resize(target);
        if is_distorted {
            (memory.distort_run, memory.distort_prepared) = (distort_run, distort_prepared);
        }
        let failure = run(&mut device, &mut driver, &mut memory);
        if failure.is_some() {
            return failure;
        }
    }
    None
}

/// Steps the driver until it waits or fails. Returns the failure, if any.
fn run(device: &mut Device, driver: &mut Driver, memory: &mut DistortingMemory) -> Option<Failure> {
    let mut answer: Option<Vec<u8>> = None;
    loop {
        let config = device.read_config();
        match driver.step(Duration::ZERO, &config, answer.take().as_deref(), memory) {
            Step::Ready(Ok(request)) => answer = Some(device.handle(&request.to_bytes()).0),
            Step::Ready(Err(failure)) => return Some(failure),
            Step::Working => {}
            _ => return None,
        }
    }
}

/// Calls `failure_with` for blocks as large as a unit and for smaller blocks.
fn failure(
    target: u64,
    distort_run: fn(PfnRange) -> PfnRange,
    distort_prepared: fn(PfnRange) -> PfnRange,
) -> Option<Failure> {
    let [large_blocks, small_blocks] = [2 * MIB, 4096]
        .map(|block| failure_with(block, target, [unchanged, distort_run, distort_prepared]));
    assert_eq!(large_blocks, small_blocks);
    large_blocks
}

fn unchanged(range: PfnRange) -> PfnRange {
    range
}

/// Moves the start and the end of a range up by these numbers of frames.
fn moved(range: PfnRange, start_frames: u64, end_frames: u64) -> PfnRange {
    let above = |pfn: Pfn, frames: u64| Pfn::new(pfn.number().wrapping_add(frames)).unwrap();
    PfnRange::new(above(range.start(), start_frames), above(range.end(), end_frames)).unwrap()
}

const UNIT: u64 = 512;
const MINUS_UNIT: u64 = UNIT.wrapping_neg();

#[test]
fn correct_results_do_not_stop_the_driver() {
    for target in [0, 16 * MIB, 64 * MIB] {
        assert_eq!(failure(target, unchanged, unchanged), None);
    }
}

#[test]
fn an_invalid_part_of_the_region_stops_the_driver() {
    let distortions: [fn(PfnRange) -> PfnRange; 5] = [
        |range| PfnRange::new(range.start(), range.start()).unwrap(),
        |range| moved(range, 1, 0),
        |range| moved(range, 0, UNIT),
        |range| moved(range, MINUS_UNIT, 0),
        |range| moved(range, 1 << 20, 1 << 20),
    ];
    for distortion in distortions {
        let failed = failure_with(2 * MIB, 64 * MIB, [distortion, unchanged, unchanged]);
        assert!(matches!(failed, Some(Failure::WrongRange(_))), "{failed:?}");
    }
}

#[test]
fn invalid_runs_stop_the_driver() {
    let distortions: [fn(PfnRange) -> PfnRange; 5] = [
        |range| PfnRange::new(range.start(), range.start()).unwrap(),
        |range| moved(range, UNIT, 0),
        |range| moved(range, 0, 1),
        |range| moved(range, MINUS_UNIT, 0),
        |range| moved(range, 0, 1 << 20),
    ];
    for distortion in distortions {
        let failed = failure(64 * MIB, distortion, unchanged);
        assert!(matches!(failed, Some(Failure::WrongRange(_))), "{failed:?}");
    }
}

#[test]
fn preparations_of_another_range_stop_the_driver() {
    let distortions: [fn(PfnRange) -> PfnRange; 6] = [
        |range| PfnRange::new(range.start(), range.start()).unwrap(),
        |range| moved(range, 0, 1),
        |range| moved(range, MINUS_UNIT, MINUS_UNIT),
        |range| moved(range, MINUS_UNIT, 0),
        |range| moved(range, 1 << 20, 1 << 20),
        |range| moved(range, 1, 0),
    ];
    for target in [0, 16 * MIB, 64 * MIB] {
        for (i, &distortion) in distortions.iter().enumerate() {
            // A lower part of a removable range may be removed too.
            if target < 32 * MIB && i == 2 {
                continue;
            }
            let failed = failure(target, unchanged, distortion);
            assert!(matches!(failed, Some(Failure::WrongRange(_))), "{target:#x} {i}: {failed:?}");
        }
    }
    // A plug may be prepared for a part at the start of the range (see
    // `PreparationFailure::OneUnit`), but not for a part at its end.
    let failed = failure(64 * MIB, unchanged, |range| moved(range, UNIT, 0));
    assert!(matches!(failed, Some(Failure::WrongRange(_))), "{failed:?}");
}

#[test]
fn an_empty_preparation_adopts_nothing() {
    let mut device = Device::new(2 * MIB, 4 << 30, 64 * MIB);
    device.preplug(0);
    device.resize(2 * MIB);
    let mut driver = Driver::new(&device.read_config(), Features::empty()).unwrap();
    let correct_memory = TestMemory::new(driver.config().managed(), driver.config().unit_frames());
    let distort_prepared = |range: PfnRange| PfnRange::new(range.start(), range.start()).unwrap();
    let mut memory = DistortingMemory {
        correct_memory,
        distort_region: unchanged,
        distort_run: unchanged,
        distort_prepared,
    };
    let failure = run(&mut device, &mut driver, &mut memory);
    assert!(matches!(failure, Some(Failure::WrongRange(_))), "{failure:?}");
}
