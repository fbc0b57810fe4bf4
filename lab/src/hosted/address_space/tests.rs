use super::super::mmu::MAX_TABLES;
use super::*;
use hotmem::{Announce, Budget, NodeId, OnlineType, Progress, Shrink, ShrinkOptions};
use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
};

const PAGES: usize = 2048;
const THREADS: u64 = 3;

fn address(page: usize) -> u64 {
    // The pages lie on both sides of a boundary between two L3 tables, so there are tables of each
    // level below L4 on both sides.
    (512 << 30) + page as u64 * PAGE_BYTES - PAGES as u64 / 2 * PAGE_BYTES
}

#[test]
fn unmapped_pages_are_not_accessed_and_a_mapped_page_is_not_mapped_again() {
    let machine = Hosted::builder().build().unwrap();
    let _hotplug = machine.boot().unwrap();
    let space = machine.address_space();
    assert_eq!((space.read(0), space.add_to_word(8, 1), space.take_dirty(0)), (None, None, false));
    assert_eq!(space.map(1 << 47), Err(MapError::Refused(1 << 47)));
    space.map(0x1fff).unwrap();
    assert_eq!(space.map(0x1000), Err(MapError::Refused(0x1000)));
    assert_eq!((space.read(0x1ff8), space.read(0x2000)), (Some(0), None));
    let free = machine.frames().counts().free;
    space.unmap(0x1000);
    space.unmap(0x1000);
    assert_eq!(machine.frames().counts().free, free + 1);
    // Each of these pages needs new tables. Tables are never freed, so all tables are used in the
    // end.
    let refused = (0..1 << 20).find(|n| space.map(n << 30).is_err());
    assert!(refused.is_some_and(|n| n < MAX_TABLES as u64), "{refused:?}");
}

#[test]
fn pages_are_migrated_to_another_node_than_that_of_the_offlined_memory() {
    let machine = Hosted::builder().hotplug_size(Bytes::mib(256)).build().unwrap();
    let mut hotplug = machine.boot().unwrap();
    let (range, space) = (machine.hotplug_range(), machine.address_space());
    let hooks = &mut machine.hooks();
    let (near, far) = range.split_at(range.start().checked_add(range.frames() / 2).unwrap());
    for (part, node) in [(near, 0), (far, 1)] {
        let node = NodeId(node);
        hotplug.announce(Announce { node, ..part.into() }).unwrap();
        hotplug.add(part).unwrap();
        hotplug.online(part, OnlineType::Movable, hooks).unwrap();
    }
    (0..PAGES).for_each(|page| space.map(address(page)).unwrap());
    let all_are_on = |part: PfnRange| {
        space.mmu.lock_mapped_pages().addresses.keys().all(|&frame| part.contains(frame))
    };
    assert!(all_are_on(near));
    let mut offline = hotplug.offline(near).unwrap();
    let progress = offline.poll(&mut hotplug, hooks, Budget::UNLIMITED);
    assert_eq!(progress, Progress::Ready(near));
    assert!(all_are_on(far), "a page was migrated to boot memory, which is on the offlined node");
}

/// Writes to random pages until `done`, and returns the number of writes to each page. `phase`
/// selects the quarter of all pages that is written to.
fn write_to_pages(
    space: AddressSpace,
    thread: u64,
    done: &AtomicBool,
    phase: &AtomicU64,
) -> Vec<u64> {
    let mut counts = vec![0; PAGES];
    let mut random = fastrand::Rng::with_seed(thread);
    while !done.load(SeqCst) {
        let page = random.usize(..PAGES);
        if (page as u64 ^ phase.load(Relaxed)).is_multiple_of(4) {
            space.add_to_word(address(page) + thread * 8, 1).unwrap();
            counts[page] += 1;
        }
    }
    counts
}

/// Memory is unplugged while threads write to it through virtual addresses. In the end each word
/// has the number of writes to it, and exactly the pages that were written to are dirty.
#[test]
fn no_write_and_no_dirty_bit_is_lost_while_memory_is_unplugged() {
    let machine = Hosted::builder().hotplug_size(Bytes::mib(256)).build().unwrap();
    let mut hotplug = machine.boot().unwrap();
    let (range, space) = (machine.hotplug_range(), machine.address_space());
    let hooks = &mut machine.hooks();
    hotplug.announce(range).unwrap();
    let done = AtomicBool::new(false);
    let phase = AtomicU64::new(0);
    thread::scope(|scope| {
        let mut is_mapped = false;
        let mut writers = Vec::new();
        for round in 0..6 {
            hotplug.add(range).unwrap();
            hotplug.online(range, OnlineType::Movable, hooks).unwrap();
            if is_mapped {
                // The pages are migrated from boot memory to the memory that was plugged.
                let used: Vec<Pfn> =
                    space.mmu.lock_mapped_pages().addresses.keys().copied().collect();
                for frame in used {
                    let frame = PfnRange::with_len(frame, 1).unwrap();
                    assert_eq!(space.migrate(frame), Some(Migration::Moved));
                }
            } else {
                (0..PAGES).for_each(|page| space.map(address(page)).unwrap());
                is_mapped = true;
                for thread in 0..THREADS {
                    let (done, phase) = (&done, &phase);
                    writers.push(scope.spawn(move || write_to_pages(space, thread, done, phase)));
                }
            }
            phase.fetch_add(1, Relaxed);
            let migrated = space.migrated();
            let mut shrink = Shrink::new(ShrinkOptions { max_run_frames: 2048, ..range.into() });
            loop {
                match shrink.poll(&mut hotplug, hooks, Budget { pageblocks: 4 }) {
                    Progress::Ready(removal) => hotplug.commit_remove(removal),
                    Progress::Working => {}
                    Progress::Pending(blocker) => panic!("{blocker}"),
                    Progress::Idle => {
                        assert_eq!(shrink.frames_left(), 0);
                        break;
                    }
                }
            }
            assert!(
                space.migrated() - migrated >= Bytes(PAGES as u64 * PAGE_BYTES),
                "round {round}"
            );
        }
        done.store(true, SeqCst);
        let counts: Vec<_> = writers.into_iter().map(|thread| thread.join().unwrap()).collect();
        for page in 0..PAGES {
            let mut is_written = false;
            for (thread, counts) in (0..).zip(&counts) {
                let count = counts[page];
                assert_eq!(space.read(address(page) + thread * 8), Some(count));
                is_written |= count > 0;
            }
            // No call has cleared Dirty, and each migration of the page must have kept it.
            assert_eq!(space.take_dirty(address(page)), is_written, "page {page}");
            space.unmap(address(page));
        }
    });
    // SAFETY: all threads have ended, so no other thread uses the machine.
    let counts = unsafe { machine.frames().validate() }.unwrap();
    assert_eq!(counts.present, machine.boot_memory().frames());
}
