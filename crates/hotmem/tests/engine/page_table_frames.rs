//! Tests where frames for page tables come from.

use hotmem::*;
use hotmem_testkit::forwarding::{TestMapping, boot_forwarding, with_kernel};
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, RawRanges as _, SECTION, Validated as _};
use std::{collections::BTreeSet, iter};

const PLUGGED: PfnRange = PfnRange::with_len(Pfn::new(SECTION).unwrap(), 3 * SECTION).unwrap();

/// A kernel that takes a frame for the page table of each pageblock, and never frees it.
#[derive(Default)]
struct Kernel {
    mapped: BTreeSet<Pfn>,
    tables: Vec<Pfn>,
}

impl TestMapping for Kernel {
    fn tables_needed(&self, range: PfnRange) -> u64 {
        range.chunks(PAGEBLOCK).count() as u64
    }

    fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for block in range.chunks(PAGEBLOCK) {
            if self.mapped.insert(block.start()) {
                self.tables.push(
                    take().expect("the engine gives as many frames as `tables_needed` returned"),
                );
            }
        }
    }
}

impl Hooks for Kernel {}

/// Plugs memory in quarters of a section, and takes the page tables of each quarter while the
/// quarter before it has free frames. The tables must not lie there, since they are never freed.
#[test]
fn permanent_tables_do_not_block_unplug() {
    let memory = Memory::new(PLUGGED.end().number());
    let frames = Frames::new(Cpus);
    let mut hotplug = boot_forwarding(&frames, &memory, SECTION);
    let mut kernel = Kernel::default();
    hotplug.announce(PLUGGED).unwrap();
    for _ in 0..2 {
        let mut allocated = vec![];
        with_kernel(&mut hotplug, &mut kernel, |hotplug, hooks| {
            for part in PLUGGED.chunks(SECTION / 4) {
                hotplug.add(part).unwrap();
                let remaining = use_up(&frames);
                hotplug.online(part, OnlineType::Kernel, hooks).unwrap();
                allocated.push(frames.alloc_range(AllocRequest::frames(2)).unwrap());
                remaining.into_iter().for_each(|range| frames.free_range(range).unwrap());
            }
            allocated.drain(..).for_each(|range| frames.free_range(range).unwrap());
            let mut shrink = Shrink::new(PLUGGED);
            while let Progress::Ready(removal) = shrink.poll(hotplug, hooks, Budget::UNLIMITED) {
                hotplug.commit_remove(removal);
            }
        });
        assert_eq!(frames.validated().unwrap().present, SECTION);
        assert_eq!(kernel.tables.len() as u64, PLUGGED.frames() / PAGEBLOCK);
    }
}

#[test]
fn tables_come_from_plugged_memory_once_boot_memory_is_used_up() {
    let memory = Memory::new(PLUGGED.end().number());
    let frames = Frames::new(Cpus);
    let mut hotplug = boot_forwarding(&frames, &memory, SECTION);
    let mut kernel = Kernel::default();
    hotplug.announce(PLUGGED).unwrap();
    with_kernel(&mut hotplug, &mut kernel, |hotplug, hooks| {
        let mut sections = PLUGGED.chunks(SECTION);
        let [first, second] = [(); 2].map(|()| sections.next().unwrap());
        hotplug.add(first).unwrap();
        use_up(&frames);
        hotplug.online(first, OnlineType::Kernel, hooks).unwrap();
        let addition = hotplug.prepare_add(second).unwrap();
        assert!(addition.table_runs().all(|run| first.covers(run)));
    });
}

/// Allocates all free memory, a pageblock at a time and then frame by frame.
fn use_up(frames: &Frames<Cpus>) -> Vec<PfnRange> {
    let requests = [PAGEBLOCK, 1].map(AllocRequest::frames);
    let all = |request| iter::from_fn(move || frames.alloc_range(request).ok());
    requests.into_iter().flat_map(all).collect()
}
