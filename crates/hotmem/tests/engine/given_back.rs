//! Tests that frames which a mapping frees, but does not own, are refused and reported to the
//! kernel.

use hotmem::RangeErrorKind;
use hotmem::*;
use hotmem_testkit::Raw as _;
use hotmem_testkit::link::Link;
use hotmem_testkit::link::Maps;
use hotmem_testkit::link::lend;
use hotmem_testkit::{Cpus, Memory, REMOTE, SECTION, pfn, range};

/// A kernel that gives these frames to `free` when memory is removed.
#[derive(Default)]
struct Kernel {
    descriptors: Vec<Pfn>,
    tables: Vec<Pfn>,
    told: Vec<(Pfn, RangeErrorKind)>,
}

impl Maps for Kernel {
    fn undescribe(&mut self, _: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.descriptors.drain(..).for_each(free);
    }

    fn release_tables(&mut self, _: PfnRange, free: &mut dyn FnMut(Pfn)) {
        self.tables.drain(..).for_each(free);
    }

    fn frame_refused(&mut self, frame: Pfn, why: RangeErrorKind) {
        self.told.push((frame, why));
    }
}

impl Hooks for Kernel {}

/// Adds a section and removes it again.
fn add_and_remove(test: impl FnOnce(&Frames<Cpus>, &mut Kernel)) -> (Counts, Counts, Kernel) {
    let memory = Memory::new(4 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, 4 * SECTION).bytes() }];
    let mut hotplug =
        hotmem_testkit::start(&frames, Link::new(memory.direct_map()), &BootMap::of_ram(&ram))
            .unwrap();
    let plugged = range(8 * SECTION, SECTION);
    hotplug.announce(plugged).unwrap();
    hotmem_testkit::make_words(&mut hotplug, plugged);
    let before = frames.counts();
    let mut kernel = Kernel::default();
    test(&frames, &mut kernel);
    lend(&mut hotplug, &mut kernel, |hotplug, _| hotplug.add(plugged)).unwrap();
    lend(&mut hotplug, &mut kernel, |hotplug, _| hotplug.remove(plugged)).unwrap();
    (before, frames.counts(), kernel)
}

#[test]
fn the_kernel_is_told_which_frame_is_refused_first_and_why() {
    let mut frame = Pfn::ZERO;
    let (before, after, kernel) = add_and_remove(|frames, kernel| {
        frame = frames.take_raw(AllocRequest::frames(1)).unwrap().start();
        // The same frame twice; then a free frame, after one that was refused.
        kernel.descriptors = vec![frame, frame, pfn(REMOTE)];
        kernel.tables = vec![Pfn::LIMIT];
    });
    let told = [(frame, RangeErrorKind::NotAllocated), (Pfn::LIMIT, RangeErrorKind::Foreign)];
    assert_eq!(kernel.told, told);
    assert_eq!(before, after);
}

#[test]
fn the_kernel_is_told_nothing_of_its_own_frames() {
    let (before, after, kernel) = add_and_remove(|frames, kernel| {
        kernel.descriptors = vec![frames.take_raw(AllocRequest::frames(1)).unwrap().start()];
        kernel.tables = vec![frames.take_raw(AllocRequest::frames(1)).unwrap().start()];
    });
    assert_eq!(kernel.told, []);
    assert_eq!(before, after);
}
