//! Tests that a kernel can migrate movable memory with a `ReverseMap` as its only reverse map.

use fastrand::Rng;
use hotmem::*;
use hotmem_port::{FrameOwner, LinearMap, ReverseMap};
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, SECTION, numbers, plug, range};
use std::collections::BTreeMap;
use std::num::NonZeroU64;

const BOOT_FRAMES: u64 = 2 * SECTION;
const HOTPLUG_FRAMES: u64 = 2 * SECTION;

fn boot<'f>(frames: &'f Frames<OneCpu>, memory: &Memory) -> Hotplug<'f, OneCpu> {
    let mut hotplug = hotmem_testkit::boot(frames, memory, BOOT_FRAMES);
    plug(&mut hotplug, range(BOOT_FRAMES, HOTPLUG_FRAMES));
    hotplug
}

fn owner(number: usize) -> FrameOwner {
    FrameOwner(NonZeroU64::new(number as u64).unwrap())
}

fn reverse_map<'f>(frames: &'f Frames<OneCpu>, memory: &Memory) -> ReverseMap<'f, OneCpu> {
    // SAFETY: `memory` is the memory of the machine of `frames`.
    unsafe { ReverseMap::new(frames, LinearMap::new(memory.start())) }
}

/// A kernel that finds the page of a frame only by its owner in the reverse map.
struct Kernel<'a> {
    frames: &'a Frames<OneCpu>,
    owners: &'a ReverseMap<'a, OneCpu>,
    pages: Vec<PfnRange>,
}

impl Hooks for Kernel<'_> {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        for (part, owner) in self.owners.runs(used) {
            let Some(owner) = owner else { return Migration::Unmovable("the frame has no owner") };
            let page = &mut self.pages[usize::try_from(owner.0.get()).unwrap() - 1];
            assert!(page.covers(part));
            let old = *page;
            let Ok(new) = self.frames.alloc_range(AllocRequest::frames(old.frames()).movable())
            else {
                return Migration::Retry;
            };
            *page = new;
            self.owners.set(new, owner).unwrap();
            self.owners.clear(old);
            self.frames.free_range(old).unwrap();
        }
        Migration::Moved
    }
}

#[test]
fn a_reverse_map_is_enough_to_migrate() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = boot(&frames, &memory);
    let owners = reverse_map(&frames, &memory);
    let mut kernel = Kernel { frames: &frames, owners: &owners, pages: vec![] };
    let mut rng = Rng::with_seed(1);
    for page in 0..usize::try_from(HOTPLUG_FRAMES / 16).unwrap().min(200) {
        let allocated = frames.alloc_range(AllocRequest::frames(rng.u64(1..8)).movable()).unwrap();
        owners.set(allocated, owner(page + 1)).unwrap();
        kernel.pages.push(allocated);
    }
    let hot = range(BOOT_FRAMES, HOTPLUG_FRAMES);
    assert!(kernel.pages.iter().any(|page| hot.covers(*page)));
    let mut offline = hotplug.offline(hot).unwrap();
    let done = offline.poll(&mut hotplug, &mut kernel, Budget::UNLIMITED);
    assert_eq!(done, Progress::Ready(hot));
    for (page, &frames) in kernel.pages.iter().enumerate() {
        assert!(!hot.overlaps(frames));
        assert!(owners.runs(frames).eq([(frames, Some(owner(page + 1)))]));
    }
    assert_eq!(owners.runs(hot).next(), Some((hot, None)));
}

#[test]
fn a_reverse_map_agrees_with_a_btree_map_and_frees_all_its_memory() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let _hotplug = boot(&frames, &memory);
    // Count metadata as free, because sections that are divided for the first time get bitmap
    // frames.
    let metadata_frames =
        || frames.metadata().map(|metadata| metadata.frames.frames()).sum::<u64>();
    let before = frames.counts().free + metadata_frames();
    let mut owners = reverse_map(&frames, &memory);
    let mut model = BTreeMap::new();
    let mut rng = Rng::with_seed(2);
    let size = 5000;
    for _ in 0..300 {
        let start = rng.u64(..size);
        let part = range(start, rng.u64(1..=size - start));
        match rng.u8(..4) {
            0 => {
                owners.clear(part);
                model.retain(|frame, _| !numbers(part).contains(frame));
            }
            1 => {
                owners.free_tables(part);
                model.retain(|frame, _| !numbers(part).contains(frame));
            }
            _ => {
                let owner = owner(rng.usize(1..10));
                owners.set(part, owner).unwrap();
                model.extend(numbers(part).map(|frame| (frame, owner)));
            }
        }
        let runs = owners.runs(range(0, size));
        let actual: BTreeMap<_, _> = runs
            .filter_map(|(run, owner)| Some((run, owner?)))
            .flat_map(|(run, owner)| numbers(run).map(move |frame| (frame, owner)))
            .collect();
        assert_eq!(actual, model);
    }
    drop(owners);
    assert_eq!(frames.validated().unwrap().free + metadata_frames(), before);
}

#[test]
fn a_set_that_fails_for_lack_of_memory_changes_no_owner() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let _hotplug = boot(&frames, &memory);
    let owners = reverse_map(&frames, &memory);
    let first = range(0, 512);
    owners.set(first, owner(1)).unwrap();
    while frames.alloc_range(AllocRequest::frames(1)).is_ok() {}
    assert_eq!(owners.set(range(511, 2), owner(2)), Err(AllocError::OutOfMemory));
    assert_eq!(owners.owner(range(510, 1).start()), Some(owner(1)));
    assert_eq!(owners.owner(range(511, 1).start()), None);
    assert_eq!(owners.owner(range(512, 1).start()), None);
    let empty = PfnRange::new(Pfn::LIMIT, Pfn::LIMIT).unwrap();
    assert_eq!(owners.owner(empty.start()), None);
    assert_eq!(owners.set(empty, owner(3)), Ok(()));
}
