//! Tests that the engine refuses frames which a mapping frees but does not own, and reports them to
//! the kernel.

use hotmem::RangeErrorKind;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::forwarding::{ForwardingMapping, Free, TestMapping, with_kernel};
use hotmem_testkit::{Cpus, DISTANT_PFN, Memory, SECTION, pfn, range};

/// A kernel that frees these frames when memory is removed, and records the frames that are
/// refused.
#[derive(Default)]
struct Kernel {
    descriptors: Vec<Pfn>,
    tables: Vec<Pfn>,
    refusals: Vec<(Pfn, RangeErrorKind)>,
}

impl TestMapping for Kernel {
    fn undescribe(&mut self, _: PfnRange, free: &mut Free<'_>) {
        self.refusals.extend(refused(&mut self.descriptors, free));
    }

    fn release_tables(&mut self, _: PfnRange, free: &mut Free<'_>) {
        self.refusals.extend(refused(&mut self.tables, free));
    }
}

/// Frees these frames. Returns those that were refused, and why.
fn refused(frames: &mut Vec<Pfn>, free: &mut Free<'_>) -> Vec<(Pfn, RangeErrorKind)> {
    frames
        .drain(..)
        .filter_map(|frame| free(frame).err().map(|error| (frame, error.kind)))
        .collect()
}

impl Hooks for Kernel {}

/// Adds a section and removes it again.
fn add_and_remove(test: impl FnOnce(&Frames<Cpus>, &mut Kernel)) -> (Counts, Counts, Kernel) {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, 4 * SECTION).bytes() }];
    let mut hotplug =
        hotmem_testkit::start(&frames, ForwardingMapping::new(memory.direct_map()), &ram).unwrap();
    let plugged = range(8 * SECTION, SECTION);
    hotplug.announce(plugged).unwrap();
    hotmem_testkit::make_words(&mut hotplug, plugged);
    let before = frames.counts();
    let mut kernel = Kernel::default();
    test(&frames, &mut kernel);
    with_kernel(&mut hotplug, &mut kernel, |hotplug, _| hotplug.add(plugged)).unwrap();
    with_kernel(&mut hotplug, &mut kernel, |hotplug, _| hotplug.remove(plugged)).unwrap();
    (before, frames.counts(), kernel)
}

#[test]
fn free_returns_the_reason_for_each_frame_that_is_refused() {
    let mut frame = Pfn::ZERO;
    let (before, after, kernel) = add_and_remove(|frames, kernel| {
        frame = frames.alloc_range(AllocRequest::frames(1)).unwrap().start();
        // `frame` is freed twice, and the other frames are no RAM.
        kernel.descriptors = vec![frame, frame, pfn(DISTANT_PFN)];
        kernel.tables = vec![Pfn::LIMIT];
    });
    let refusals = [
        (frame, RangeErrorKind::NotAllocated),
        (pfn(DISTANT_PFN), RangeErrorKind::Foreign),
        (Pfn::LIMIT, RangeErrorKind::Foreign),
    ];
    assert_eq!(kernel.refusals, refusals);
    assert_eq!(before, after);
}

#[test]
fn the_kernels_own_frames_are_not_refused() {
    let (before, after, kernel) = add_and_remove(|frames, kernel| {
        kernel.descriptors = vec![frames.alloc_range(AllocRequest::frames(1)).unwrap().start()];
        kernel.tables = vec![frames.alloc_range(AllocRequest::frames(1)).unwrap().start()];
    });
    assert_eq!(kernel.refusals, []);
    assert_eq!(before, after);
}
