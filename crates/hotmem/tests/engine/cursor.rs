//! Tests that no CPU takes a frame of withdrawn memory by a cursor that still leads there.

use hotmem::*;
use hotmem_testkit::{Cpus, DISTANT_PFN, Memory, RawRanges as _, SECTION, range};
use std::iter;

#[test]
fn a_cpu_takes_no_frame_of_withdrawn_memory() {
    let memory = Memory::new(8 * SECTION);
    let frames = Frames::new(Cpus);
    let ram = [BootRange { start: 0, len: range(0, 8 * SECTION).bytes() }];
    let map = BootMap::from(&ram);
    let mut hotplug = hotmem_testkit::start(&frames, memory.direct_map(), map).unwrap();
    let plugged = range(DISTANT_PFN, SECTION);
    let movable = AllocRequest::frames(1).movable();

    let region = hotplug.announce(plugged).unwrap();
    hotplug.add(plugged).unwrap();
    hotplug.online(plugged, OnlineType::Movable, &mut NoHooks).unwrap();
    // Each CPU allocates twice: the second allocation uses the cursor that the first one has set.
    let held: Vec<_> = (0..6)
        .map(|nth| {
            Cpus::run_on(nth / 2);
            frames.alloc_range(movable).unwrap()
        })
        .collect();
    assert!(held.iter().all(|frame| plugged.covers(*frame)));
    held.into_iter().for_each(|frame| frames.free_range(frame).unwrap());
    let mut request = hotplug.offline(plugged).unwrap();
    assert_eq!(
        request.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED),
        Progress::Ready(plugged)
    );
    hotplug.remove(plugged).unwrap();
    hotplug.withdraw(region).unwrap();

    let other_frames: Vec<_> =
        iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1)).ok()).collect();
    assert!(!other_frames.is_empty());
    for cpu in 0..3 {
        Cpus::run_on(cpu);
        assert_eq!(frames.alloc_range(movable).err(), Some(AllocError::OutOfMemory), "CPU {cpu}");
    }

    // All frames that are freed can be allocated again.
    for (nth, frame) in other_frames.iter().enumerate() {
        Cpus::run_on(nth % 3);
        frames.free_range(*frame).unwrap();
    }
    let all = iter::from_fn(|| frames.alloc_range(AllocRequest::frames(1)).ok()).count();
    assert_eq!(all, other_frames.len());
}
