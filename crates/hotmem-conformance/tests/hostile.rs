//! Checks that no device can stop the suite, or make it panic.

use hotmem_conformance::model::{Hostility, Model};
use hotmem_conformance::runner::{Fault, Suite, Verdict};
use hotmem_conformance::{
    BALLOON_POINTS, Clock, Failure, GuestMemory, Host, Inaccessible, MEMORY_POINTS, Outcome, Point,
    Registers, Unsupported,
};
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

/// Time that passes only when it is read.
const TICK: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(1);

fn point(points: &'static [Point], name: &str) -> &'static Point {
    points.iter().find(|point| point.name == name).unwrap()
}

fn check(point: &Point, device: &mut (impl Registers + GuestMemory + Host)) -> Outcome {
    let time = Cell::new(Duration::ZERO);
    let now = || {
        time.set(time.get() + TICK);
        time.get()
    };
    point.check(device, Clock { now: &now, answer_limit: LIMIT })
}

/// Checks a point that sends a request with a hostile memory device.
fn failure_of(hostility: Hostility) -> Failure {
    let point = point(MEMORY_POINTS, "mem/state/unplugged");
    match check(point, &mut Model::memory(None).hostile(hostility)) {
        Outcome::Failed(failure) => failure,
        outcome => panic!("{hostility:?}: {outcome:?}"),
    }
}

#[test]
fn each_hostility_is_named() {
    assert_eq!(failure_of(Hostility::NeverAnswers), Failure::NoAnswer { queue: 0 });
    let twice = Failure::UsedIndex { limit: 1, found: 2 };
    assert_eq!(failure_of(Hostility::AnswersTwice), twice);
    assert_eq!(failure_of(Hostility::UsesWrongChain), Failure::UsedId(7));
    let jumps = Failure::UsedIndex { limit: 1, found: 1001 };
    assert_eq!(failure_of(Hostility::UsedIndexJumps), jumps);
    let too_many = Failure::UsedLength { writable: 10, found: 1 << 20 };
    assert_eq!(failure_of(Hostility::ReportsTooMany), too_many);
    let outside = failure_of(Hostility::WritesBehindBuffers);
    assert!(matches!(outside, Failure::WrittenOutside { found: 1, .. }), "{outside:?}");
    assert_eq!(failure_of(Hostility::WritesDescriptors), Failure::RingWritten { queue: 0 });
    assert_eq!(failure_of(Hostility::ConfigOfOnes), Failure::Region);
    assert_eq!(failure_of(Hostility::ConfigOfZeros), Failure::Region);
}

#[test]
fn a_generation_that_always_changes_stops_no_point() {
    let device = || Model::memory(None).hostile(Hostility::GenerationNeverRests);
    for point in MEMORY_POINTS {
        assert_eq!(check(point, &mut device()), Outcome::Passed, "{}", point.name);
    }
}

#[test]
fn a_device_that_panics_fails_its_point_with_the_message() {
    let suite = Suite::new(BALLOON_POINTS, || Model::balloon(None).hostile(Hostility::Panics));
    let verdict = suite.run_point(point(BALLOON_POINTS, "balloon/inflate/used-len-zero"));
    let message = "the model panics, as it was told to".to_owned();
    assert_eq!(verdict, Verdict::Failed(Fault::Panics(message)));
}

#[test]
fn a_device_that_does_not_return_fails_its_point() {
    let suite = Suite::new(MEMORY_POINTS, || Model::memory(None).hostile(Hostility::Hangs));
    let limit = Duration::from_millis(50);
    let verdict =
        suite.within(LIMIT, limit).run_point(point(MEMORY_POINTS, "mem/plug/first-block"));
    assert_eq!(verdict, Verdict::Failed(Fault::Hangs(limit)));
}

/// A device that sometimes answers anything, and writes anything anywhere into RAM.
struct Erratic {
    model: Model,
    state: u64,
}

impl Erratic {
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn is_erratic(&mut self) -> bool {
        self.random().is_multiple_of(64)
    }
}

impl Registers for Erratic {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.model.read(offset, data);
        if self.is_erratic() {
            // Small, large and arbitrary values.
            let value = [0, 1, u64::MAX, self.random()][(self.random() % 4) as usize];
            data.copy_from_slice(&value.to_le_bytes()[..data.len()]);
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if !self.is_erratic() {
            self.model.write(offset, data);
        }
    }

    fn run(&mut self) {
        self.model.run();
        if self.is_erratic() {
            let ram = self.model.ram();
            // The queues and the buffers.
            let addr = ram.start + self.random() % (9 * 4096) / 2 * 2;
            let bytes = self.random().to_le_bytes();
            self.model.write_memory(addr, &bytes[..2]).unwrap();
        }
    }
}

impl GuestMemory for Erratic {
    fn ram(&self) -> Range<u64> {
        self.model.ram()
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        if self.is_erratic() { Err(Inaccessible) } else { self.model.read_memory(addr, data) }
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        if self.is_erratic() { Err(Inaccessible) } else { self.model.write_memory(addr, data) }
    }
}

impl Host for Erratic {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        if self.is_erratic() { Ok(()) } else { self.model.set_requested_size(bytes) }
    }

    fn ask_statistics(&mut self) -> Result<(), Unsupported> {
        self.model.ask_statistics()
    }

    fn start_hints(&mut self) -> Result<(), Unsupported> {
        self.model.start_hints()
    }
}

#[test]
fn a_device_that_does_anything_neither_stops_the_suite_nor_makes_it_panic() {
    let mut failures = 0;
    for points in [MEMORY_POINTS, BALLOON_POINTS] {
        let is_memory = core::ptr::eq(points, MEMORY_POINTS);
        for point in points {
            for seed in 1..=40 {
                let model = if is_memory { Model::memory(None) } else { Model::balloon(None) };
                let mut device = Erratic { model, state: seed << 32 | 0x9e37_79b9 };
                failures += u32::from(matches!(check(point, &mut device), Outcome::Failed(_)));
            }
        }
    }
    assert!(failures > 0);
}
