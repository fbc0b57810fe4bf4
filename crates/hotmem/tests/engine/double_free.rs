//! Tests that if a frame is freed twice at the same time, one call fails, and no frame is lost.

use hotmem::RangeErrorKind;
use hotmem::report::{Reporter, ReporterSettings, Step};
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range};
use std::cell::Cell;
use std::time::Duration;

/// A platform that frees a range in the middle of another free: as soon as more frames are free
/// than this number.
#[derive(Default)]
struct OtherThread(Cell<Option<(*const Frames<OtherThread>, u64, PfnRange)>>);

impl Platform for OtherThread {
    fn cpu(&self) -> usize {
        0
    }

    // A free wakes the reporter when it has published the first whole pageblocks.
    fn wake_reporter(&self) {
        if let Some((instance, free, range)) = self.0.take() {
            // SAFETY: `instance` points to the instance of the test, which outlives this platform's
            // use.
            let frames = unsafe { &*instance };
            if frames.counts().free > free {
                frames.free_range(range).expect("the other thread is the first to free the range");
            } else {
                self.0.set(Some((instance, free, range)));
            }
        }
    }
}

#[test]
fn frames_freed_before_a_conflicting_free_are_not_lost() {
    let memory = Memory::new(SECTION);
    let frames = Frames::new(OtherThread::default());
    let ram = [BootRange { start: 0, len: range(0, SECTION).bytes() }];
    let map = BootMap::from(&ram);
    let _hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    let three = frames.alloc_range(AllocRequest::frames(3 * PAGEBLOCK).aligned(PAGEBLOCK)).unwrap();
    let mut reporter =
        Reporter::new(&frames, ReporterSettings::EAGER, Contents::Undefined).unwrap();
    // The reporter sleeps when it has reported all that it may.
    loop {
        match reporter.step(Duration::ZERO) {
            Step::Ready(Ok(batch)) => reporter.reported(batch),
            Step::Working => {}
            _ => break,
        }
    }
    let (below, remaining) = three.split_at(three.start().checked_add(2 * PAGEBLOCK + 5).unwrap());
    let (tail, untouched) = remaining.split_at(remaining.start().checked_add(5).unwrap());
    let metadata = || frames.metadata().map(|metadata| metadata.frames.frames()).sum::<u64>();
    let (free, metadata_before) = (frames.counts().free, metadata());
    frames.platform().0.set(Some((&raw const frames, free, tail)));
    let both = PfnRange::new(below.start(), tail.end()).unwrap();
    let refused = frames.free_range(both).unwrap_err();
    assert_eq!(refused.kind, RangeErrorKind::NotAllocated);
    // Everything below the reported range was freed.
    let freed = refused.range.start().number() - below.start().number();
    assert!(freed >= 2 * PAGEBLOCK);
    let counts = frames.validated().unwrap();
    let bitmaps = metadata() - metadata_before;
    assert_eq!(counts.free, free + freed + tail.frames() - bitmaps);
    frames.free_range(untouched).unwrap();
}
