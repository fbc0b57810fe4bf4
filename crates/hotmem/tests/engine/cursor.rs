//! Tests that a CPU does not use what it remembers of memory that was withdrawn.

use hotmem::*;
use hotmem_testkit::{Cpus, Memory, REMOTE, Raw as _, SECTION, numbers, range};
use std::iter;
use std::sync::atomic::Ordering;

/// A word of a frame bitmap of movable memory, without flags, of which all frames are free.
const OPEN: u64 = if cfg!(hotmem_geometry = "small") { 0x10ff } else { 0x10_ffff_ffff };

#[test]
fn a_cpu_takes_no_frame_by_words_that_were_reclaimed() {
    let memory = Memory::new(8 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, 8 * SECTION).bytes() }];
    let map = BootMap::of_ram(&ram);
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), &map).unwrap();
    let plugged = range(REMOTE, SECTION);
    let movable = AllocRequest::frames(1).movable();

    let region = hotplug.announce(plugged).unwrap();
    hotplug.add(plugged).unwrap();
    hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
    // The second allocation of a CPU comes from the pageblock that the first one found.
    let held: Vec<_> = (0..6)
        .map(|nth| {
            Cpus::run_on(nth / 2);
            frames.take_raw(movable).unwrap()
        })
        .collect();
    assert!(held.iter().all(|frame| plugged.covers(*frame)));
    held.into_iter().for_each(|frame| frames.give_raw(frame).unwrap());
    let mut request = hotplug.offline(plugged).unwrap();
    assert_eq!(
        request.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED),
        Progress::Ready(plugged)
    );
    hotplug.remove(plugged).unwrap();
    hotplug.withdraw(region).unwrap();
    // SAFETY: no other thread uses the machine.
    assert!(unsafe { hotplug.reclaim_words() } > Bytes::ZERO);

    // The frames that held the words have other owners now, which may write any value.
    let mut others = Vec::new();
    while let Ok(frame) = frames.take_raw(AllocRequest::frames(1)) {
        for frame in numbers(frame) {
            for word in memory.cells(frame) {
                word.store(OPEN, Ordering::Relaxed);
            }
        }
        others.push(frame);
    }
    assert!(!others.is_empty());
    for cpu in 0..3 {
        Cpus::run_on(cpu);
        assert_eq!(frames.take_raw(movable).err(), Some(AllocError::OutOfMemory), "CPU {cpu}");
    }

    // Nor does a CPU free a frame into such a word.
    for (nth, frame) in others.iter().enumerate() {
        Cpus::run_on(nth % 3);
        frames.give_raw(*frame).unwrap();
    }
    let all = iter::from_fn(|| frames.take_raw(AllocRequest::frames(1)).ok()).count();
    assert_eq!(all, others.len());
}
