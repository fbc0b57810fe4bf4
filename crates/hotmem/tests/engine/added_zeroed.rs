//! Tests which memory is known to be zero after it was added.

use hotmem::{
    AddRequest, AllocRequest, Budget, Contents, Frames, Hotplug, NoHooks, OneCpu, OnlineType,
    PfnRange, Progress,
};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, pfn, range};

/// The memory that is added, behind boot memory.
const ADDED_START: u64 = 4 * SECTION;
const FRAMES: u64 = 4 * PAGEBLOCK;

/// Runs `test` on an instance that keeps zero marks, and with memory that can be added.
fn with_instance(test: impl FnOnce(&Frames<OneCpu>, &mut Hotplug<'_, OneCpu>, PfnRange)) {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(ADDED_START + SECTION));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, ADDED_START);
    hotmem_testkit::keep_zero_marks(&frames);
    hotplug.announce(range(ADDED_START, SECTION)).unwrap();
    test(&frames, &mut hotplug, range(ADDED_START, FRAMES));
    frames.validated().unwrap();
}

fn add_zeroed(hotplug: &mut Hotplug<'_, OneCpu>, request: impl Into<AddRequest>) {
    let addition = hotplug.prepare_add(request).unwrap();
    hotplug.commit_add(addition.zeroed());
}

fn online(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) {
    hotplug.online(range, OnlineType::Movable, &mut NoHooks).unwrap();
}

fn offline(hotplug: &mut Hotplug<'_, OneCpu>, range: PfnRange) {
    let mut offline = hotplug.offline(range).unwrap();
    assert_eq!(offline.poll(hotplug, &mut NoHooks, Budget::UNLIMITED), Progress::Ready(range));
}

/// Returns how many pageblocks of movable memory are known to be zero, and uses all of them.
fn zeroed(frames: &Frames<OneCpu>) -> u64 {
    let request = AllocRequest::frames(PAGEBLOCK).movable().within(pfn(ADDED_START)..);
    let all = std::iter::from_fn(|| frames.alloc_with_contents(request).ok());
    all.collect::<Vec<_>>().iter().filter(|one| one.1 == Contents::Filled(0)).count() as u64
}

#[test]
fn memory_that_was_added_as_zero_is_zero_until_it_is_used() {
    with_instance(|frames, hotplug, added| {
        add_zeroed(hotplug, added);
        online(hotplug, added);
        assert_eq!(zeroed(frames), FRAMES / PAGEBLOCK);
        assert_eq!(zeroed(frames), 0, "it was used");
        // Offline memory keeps what was written to it.
        offline(hotplug, added);
        online(hotplug, added);
        assert_eq!(zeroed(frames), 0);
    });
}

#[test]
fn memory_that_comes_online_in_parts_or_late_is_zero() {
    with_instance(|frames, hotplug, added| {
        add_zeroed(hotplug, added);
        frames.validated().unwrap();
        let (low, high) = added.split_at(pfn(ADDED_START + 3 * PAGEBLOCK));
        online(hotplug, high);
        assert_eq!(zeroed(frames), 1);
        online(hotplug, low);
        assert_eq!(zeroed(frames), 3);
    });
}

#[test]
fn memory_is_zero_only_if_the_platform_promises_it() {
    with_instance(|frames, hotplug, added| {
        let (low, high) = added.split_at(pfn(ADDED_START + 3 * PAGEBLOCK));
        add_zeroed(hotplug, low);
        hotplug.add(high).unwrap();
        online(hotplug, added);
        assert_eq!(zeroed(frames), 3);
        // The promise was for one addition.
        offline(hotplug, added);
        hotplug.remove(added).unwrap();
        hotplug.add(added).unwrap();
        online(hotplug, added);
        assert_eq!(zeroed(frames), 0);
    });
}

#[test]
fn a_promise_ends_when_the_memory_is_removed_or_its_removal_is_abandoned() {
    with_instance(|frames, hotplug, added| {
        add_zeroed(hotplug, added);
        hotplug.remove(added).unwrap();
        hotplug.add(added).unwrap();
        online(hotplug, added);
        assert_eq!(zeroed(frames), 0);
        offline(hotplug, added);
        hotplug.remove(added).unwrap();

        add_zeroed(hotplug, added);
        let removal = hotplug.prepare_remove(added).unwrap();
        hotplug.abandon_remove(removal, &mut NoHooks);
        online(hotplug, added);
        assert_eq!(zeroed(frames), 0);
    });
}

#[test]
fn pageblocks_with_poisoned_frames_are_not_known_to_be_zero() {
    with_instance(|frames, hotplug, added| {
        add_zeroed(hotplug, added);
        hotplug.poison(pfn(ADDED_START + 5)).unwrap();
        online(hotplug, added);
        assert_eq!(zeroed(frames), FRAMES / PAGEBLOCK - 1);
        let frame = AllocRequest::frames(1).movable().within(pfn(ADDED_START)..);
        assert_eq!(frames.alloc_with_contents(frame).unwrap().1, Contents::Undefined);
    });
}

#[test]
fn nothing_is_marked_unless_marks_are_kept() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(ADDED_START + SECTION));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, ADDED_START);
    let added = range(ADDED_START, FRAMES);
    hotplug.announce(added).unwrap();
    add_zeroed(&mut hotplug, added);
    hotmem_testkit::keep_zero_marks(&frames);
    online(&mut hotplug, added);
    assert_eq!(zeroed(&frames), 0, "no marks were kept when it was added");
}

#[test]
fn memory_that_a_driver_had_meanwhile_is_not_known_to_be_zero() {
    with_instance(|frames, hotplug, added| {
        add_zeroed(hotplug, added);
        hotplug.ram_to_device(added).unwrap();
        // SAFETY: no driver uses the memory.
        unsafe { hotplug.device_to_ram(added, OnlineType::Movable, &mut NoHooks) }.unwrap();
        assert_eq!(zeroed(frames), 0);
    });
}

#[test]
fn device_memory_gets_no_mark() {
    with_instance(|frames, hotplug, added| {
        add_zeroed(hotplug, AddRequest { device: true, ..added.into() });
        assert_eq!(zeroed(frames), 0);
    });
}
