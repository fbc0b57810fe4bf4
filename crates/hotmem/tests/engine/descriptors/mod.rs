//! Tests descriptors of RAM. If a whole section is added, its descriptors lie in the section
//! itself, otherwise in other free memory. They are removed with the memory that they describe.

mod random;
mod self_hosted;

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::forwarding::ForwardingMapping;
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::forwarding::{Free, TestMapping};
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, Snapshot, numbers, pfn, range};
use std::collections::{BTreeMap, BTreeSet};

/// The numbers of sections of boot memory, and of all memory.
const BOOT_SECTIONS: u64 = 2;
const SECTIONS: u64 = 12;
const BLOCKS_PER_SECTION: u64 = SECTION / PAGEBLOCK;

/// The place of a pageblock's descriptors.
#[derive(PartialEq, Eq, Debug)]
enum Place {
    /// In the section that it lies in.
    ItsSection,
    /// In this frame.
    Frame(Pfn),
}

/// A kernel with descriptors of RAM. Those of a section that is added as a whole lie in the first
/// pageblock of the section, those of each other pageblock in one frame.
#[derive(Default)]
struct Kernel {
    /// The place of each described pageblock's descriptors.
    descriptor_places: BTreeMap<u64, Place>,
    /// Whether `going_online` refuses.
    vetoes: bool,
    /// The number of calls of `undescribe`.
    undescribe_calls: usize,
}

fn blocks(range: PfnRange) -> impl Iterator<Item = u64> {
    numbers(range).step_by(usize::try_from(PAGEBLOCK).unwrap()).map(|frame| frame / PAGEBLOCK)
}

impl Kernel {
    /// Returns whether a section's descriptors lie in its first pageblock now.
    fn describes_itself(&self, section: u64) -> bool {
        self.descriptor_places.get(&(section * BLOCKS_PER_SECTION)) == Some(&Place::ItsSection)
    }

    /// Returns the pageblocks that hold the descriptors of their sections now.
    fn descriptor_blocks(&self) -> impl Iterator<Item = PfnRange> {
        (0..SECTIONS)
            .filter(|&section| self.describes_itself(section))
            .map(|s| range(s * SECTION, PAGEBLOCK))
    }

    fn is_described_in_section(&self, section_range: PfnRange) -> bool {
        section_range.frames() == SECTION
            || self.describes_itself(section_range.start().number() / SECTION)
    }
}

impl TestMapping for Kernel {
    fn descriptors_needed(&self, range: PfnRange) -> u64 {
        let parts = range
            .chunks(SECTION)
            .filter(|&section_range| !self.is_described_in_section(section_range));
        parts.map(|section_range| section_range.frames() / PAGEBLOCK).sum()
    }

    fn descriptor_pageblocks(&self, section: PfnRange) -> u64 {
        assert_eq!(section.frames(), SECTION);
        1
    }

    fn describe(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for section_range in range.chunks(SECTION) {
            let in_section = self.is_described_in_section(section_range);
            for block in blocks(section_range) {
                let place = match in_section {
                    true => Place::ItsSection,
                    false => Place::Frame(take().expect(
                        "the engine gives as many frames as `descriptors_needed` returned",
                    )),
                };
                assert_eq!(
                    self.descriptor_places.insert(block, place),
                    None,
                    "{block} is described already"
                );
            }
        }
    }

    fn undescribe(&mut self, range: PfnRange, free: &mut Free<'_>) {
        self.undescribe_calls += 1;
        for block in blocks(range) {
            match self
                .descriptor_places
                .remove(&block)
                .expect("a pageblock that is undescribed has descriptors")
            {
                Place::Frame(frame) => free(frame).unwrap(),
                Place::ItsSection if block % BLOCKS_PER_SECTION == 0 => {
                    let mut other_places =
                        self.descriptor_places.range(block..block + BLOCKS_PER_SECTION);
                    let other_places = other_places.find(|(other, place)| {
                        **place == Place::ItsSection
                            && !blocks(range).any(|removed| removed == **other)
                    });
                    assert_eq!(
                        other_places, None,
                        "memory that stays has its descriptors in memory that is removed"
                    );
                }
                Place::ItsSection => {}
            }
        }
    }
}

impl Hooks for Kernel {
    fn going_online(&mut self, _: PfnRange, _: Zone) -> Result<(), Veto> {
        if self.vetoes { Err(Veto("not now")) } else { Ok(()) }
    }
}

struct Instance<'f> {
    frames: &'f Frames<OneCpu>,
    hotplug: Hotplug<'f, OneCpu, ForwardingMapping<Kernel>>,
    kernel: Kernel,
}

fn with_instance(test: impl FnOnce(&mut Instance<'_>)) {
    let memory = Memory::new(SECTIONS * SECTION);
    let frames = Frames::new(OneCpu);
    let ram = [BootRange { start: 0, len: range(0, BOOT_SECTIONS * SECTION).bytes() }];
    let map = BootMap::from(&ram);
    let mut hotplug =
        hotmem_testkit::start(&frames, ForwardingMapping::new(memory.direct_map()), map).unwrap();
    hotplug.announce(range(BOOT_SECTIONS * SECTION, (SECTIONS - BOOT_SECTIONS) * SECTION)).unwrap();
    test(&mut Instance { frames: &frames, hotplug, kernel: Kernel::default() });
}

impl<'f> Instance<'f> {
    /// Calls `act` while the mapping and the hooks are those of the kernel.
    fn with<R>(
        &mut self,
        act: impl FnOnce(
            &mut Hotplug<'f, OneCpu, ForwardingMapping<Kernel>>,
            &mut ForwardingMapping<Kernel>,
        ) -> R,
    ) -> R {
        with_kernel(&mut self.hotplug, &mut self.kernel, act)
    }

    fn plug(&mut self, range: PfnRange) {
        self.with(|hotplug, _| hotplug.add(range)).unwrap();
        self.hotplug.online(range, OnlineType::Movable, &mut self.kernel).unwrap();
    }

    fn take_offline(&mut self, range: PfnRange) {
        let mut offline = self.hotplug.offline(range).unwrap();
        let done = offline.poll(&mut self.hotplug, &mut self.kernel, Budget::UNLIMITED);
        assert_eq!(done, Progress::Ready(range));
    }

    fn snapshot(&self, used: &[PfnRange]) -> Snapshot {
        let descriptor_frames =
            self.kernel.descriptor_places.values().filter_map(|place| match place {
                Place::Frame(frame) => PfnRange::with_len(*frame, 1),
                Place::ItsSection => None,
            });
        let used: Vec<_> = descriptor_frames.chain(used.iter().copied()).collect();
        Snapshot::of(&self.hotplug, SECTIONS * SECTION, &used)
    }

    fn shrink(&mut self, within: PfnRange, frames: u64) -> (u64, Option<Blocker>) {
        let mut shrink = Shrink::new(ShrinkOptions { frames, ..within.into() });
        loop {
            match self.with(|hotplug, hooks| shrink.poll(hotplug, hooks, Budget::UNLIMITED)) {
                Progress::Ready(removal) => self.with(|hotplug, _| hotplug.commit_remove(removal)),
                Progress::Working => {}
                ended => return (shrink.frames_left(), hotmem_testkit::blocker_of(ended)),
            }
        }
    }
}
