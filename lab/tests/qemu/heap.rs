//! Tests in which memory with objects of the guest's heap is unplugged. The guest fails if an
//! object has changed.

use crate::support::{Machine, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event};

/// The state of the guest's heap.
#[derive(Clone, Copy, Debug)]
struct Heap {
    objects: u64,
    mapped: Bytes,
    migrated: Bytes,
}

/// Waits for the guest's next report of its heap.
fn wait_for_heap(vm: &mut Machine) -> Heap {
    let heap = |event: &Event| match *event {
        Event::Heap { objects, mapped, moved } => {
            Some(Heap { objects, mapped: Bytes(mapped), migrated: Bytes(moved) })
        }
        _ => None,
    };
    vm.wait("report of the heap", heap).unwrap().0
}

/// Waits until the guest reports that it cannot reach its target for `reason`. Reports of other
/// reasons, such as a slow host, are skipped.
fn wait_for_pending(vm: &mut Machine, reason: &str) {
    let has_reason = |event: &Event| match event {
        Event::Pending { reason: found, .. } => found.contains(reason).then_some(()),
        _ => None,
    };
    vm.wait(reason, has_reason).unwrap();
}

#[test]
fn memory_with_live_objects_is_unplugged() {
    let size = Bytes::gib(4);
    let mut vm = start(
        &config(size).with_guest_option("heap", "32M").with_guest_option("exit", "resizes:5"),
    );
    let mut migrated = Bytes::ZERO;
    for _ in 0..2 {
        vm.resize_checked(size);
        let before = wait_for_heap(&mut vm);
        assert!(before.objects == 8192 && before.mapped >= Bytes::mib(32), "{before:?}");
        vm.resize_checked(Bytes::ZERO);
        let after = wait_for_heap(&mut vm);
        assert_eq!((after.objects, after.mapped), (before.objects, before.mapped));
        // At the first unplug all pages of the heap are in the unplugged memory. They are migrated
        // to boot memory and stay there.
        let is_first = migrated == Bytes::ZERO;
        assert!(!is_first || after.migrated > Bytes::mib(31), "{after:?}");
        migrated = after.migrated;
    }
    vm.finish(size);
}

#[test]
fn a_lack_of_memory_for_migrated_objects_is_reported_and_ends_when_objects_are_freed() {
    let config = Config { boot_memory: Bytes::mib(64), ..config(Bytes::gib(1)) };
    let mut vm =
        start(&config.with_guest_option("heap", "96M").with_guest_option("exit", "resizes:3"));
    vm.resize(Bytes::gib(1)).unwrap();
    let before = wait_for_heap(&mut vm);
    assert!(before.mapped >= Bytes::mib(95), "{before:?}");
    vm.request(Bytes::ZERO).unwrap();
    wait_for_pending(&mut vm, "free elsewhere");
    // The guest frees half of the objects.
    let freed = wait_for_heap(&mut vm);
    assert_eq!(freed.objects, before.objects / 2);
    assert!(freed.mapped.0 < before.mapped.0 * 6 / 10, "{freed:?} of {before:?}");
    vm.wait("end of the unplug", |event| matches!(event, Event::Resized { .. }).then_some(()))
        .unwrap();
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    vm.finish(Bytes::gib(1));
}

#[test]
fn a_pinned_page_of_an_object_is_reported_and_unplugged_after_it_is_unpinned() {
    let size = Bytes::gib(1);
    let mut vm = start(
        &config(size)
            .with_guest_option("heap", "16M")
            .with_guest_option("pin", "on")
            .with_guest_option("exit", "size:2M"),
    );
    vm.resize_checked(size);
    let before = wait_for_heap(&mut vm);
    vm.request(Bytes::ZERO).unwrap();
    wait_for_pending(&mut vm, "a page pinned by the kernel");
    // After its report, the guest unpins the page. It frees no object.
    assert_eq!(wait_for_heap(&mut vm).objects, before.objects);
    vm.wait("end of the unplug", |event| matches!(event, Event::Resized { .. }).then_some(()))
        .unwrap();
    assert_eq!(wait_for_heap(&mut vm).objects, before.objects);
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    vm.finish(Bytes::mib(2));
}
