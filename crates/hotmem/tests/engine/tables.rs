//! Tests where frames for page tables come from.

use hotmem::*;
use hotmem_testkit::link::{Maps, boot_linked, lend};
use hotmem_testkit::{Cpus, Memory, PAGEBLOCK, Raw as _, SECTION, Validated as _};
use std::{collections::BTreeSet, iter};

const PLUGGED: PfnRange = PfnRange::with_len(Pfn::new(SECTION).unwrap(), 3 * SECTION).unwrap();

/// A kernel with a page table for each pageblock. It never frees one.
#[derive(Default)]
struct Kernel {
    mapped: BTreeSet<Pfn>,
    tables: Vec<Pfn>,
}

impl Maps for Kernel {
    fn tables_needed(&self, range: PfnRange) -> u64 {
        range.chunks(PAGEBLOCK).count() as u64
    }

    fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        for block in range.chunks(PAGEBLOCK) {
            if self.mapped.insert(block.start()) {
                self.tables.push(take().expect("as many as needed"));
            }
        }
    }
}

impl Hooks for Kernel {}

/// Plugs memory in pieces. When the next one comes, the CPU allocates from the one before.
#[test]
fn tables_that_stay_do_not_keep_plugged_memory() {
    let memory = Memory::new(PLUGGED.end().number());
    let frames = Frames::new(Cpus);
    let mut hotplug = boot_linked(&frames, &memory, SECTION);
    let mut kernel = Kernel::default();
    hotplug.announce(PLUGGED).unwrap();
    for _ in 0..2 {
        let mut used = vec![];
        lend(&mut hotplug, &mut kernel, |hotplug, hooks| {
            for piece in PLUGGED.chunks(SECTION / 4) {
                hotplug.add(piece).unwrap();
                let others = use_up(&frames);
                hotplug.online(piece, OnlineType::Kernel, hooks).unwrap();
                used.push(frames.alloc_range(AllocRequest::frames(2)).unwrap());
                others.into_iter().for_each(|other| frames.free_range(other).unwrap());
            }
            used.drain(..).for_each(|used| frames.free_range(used).unwrap());
            let mut shrink = Shrink::new(PLUGGED);
            while let Progress::Ready(removal) = shrink.poll(hotplug, hooks, Budget::UNLIMITED) {
                hotplug.commit_remove(removal).expect("it is this machine's");
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
    let mut hotplug = boot_linked(&frames, &memory, SECTION);
    let mut kernel = Kernel::default();
    hotplug.announce(PLUGGED).unwrap();
    lend(&mut hotplug, &mut kernel, |hotplug, hooks| {
        let mut pieces = PLUGGED.chunks(SECTION);
        let [first, second] = [(); 2].map(|()| pieces.next().unwrap());
        hotplug.add(first).unwrap();
        use_up(&frames);
        hotplug.online(first, OnlineType::Kernel, hooks).unwrap();
        let addition = hotplug.prepare_add(second).unwrap();
        assert!(first.covers(addition.tables()));
    });
}

/// Allocates all free memory, a pageblock at a time and then frame by frame.
fn use_up(frames: &Frames<Cpus>) -> Vec<PfnRange> {
    let requests = [PAGEBLOCK, 1].map(AllocRequest::frames);
    let all = |request| iter::from_fn(move || frames.alloc_range(request).ok());
    requests.into_iter().flat_map(all).collect()
}
