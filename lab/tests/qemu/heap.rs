//! Tests of the guest's heap on memory that is unplugged. The guest fails if an object has changed.

use crate::support::{Machine, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event};

/// The guest's heap, as its event describes it.
#[derive(Clone, Copy, Debug)]
struct Heap {
    objects: u64,
    mapped: Bytes,
    moved: Bytes,
}

fn heap(vm: &mut Machine) -> Heap {
    let heap = |event: &Event| match *event {
        Event::Heap { objects, mapped, moved } => {
            Some(Heap { objects, mapped: Bytes(mapped), moved: Bytes(moved) })
        }
        _ => None,
    };
    vm.wait("word of the heap", heap).unwrap().0
}

/// Waits until the guest reports that this reason keeps memory from being unplugged. Other reasons,
/// such as a slow host, are skipped.
fn wait_until_kept(vm: &mut Machine, reason: &str) {
    let kept = |event: &Event| match event {
        Event::Pending { why, .. } => why.contains(reason).then_some(()),
        _ => None,
    };
    vm.wait(reason, kept).unwrap();
}

#[test]
fn memory_with_live_objects_is_unplugged() {
    let size = Bytes::gib(4);
    let mut vm = start(&config(size).with("heap", "32M").with("exit", "resizes:5"));
    let mut moved = Bytes::ZERO;
    for _ in 0..2 {
        vm.resize_checked(size);
        let grown = heap(&mut vm);
        assert!(grown.objects == 8192 && grown.mapped >= Bytes::mib(32), "{grown:?}");
        vm.resize_checked(Bytes::ZERO);
        let shrunk = heap(&mut vm);
        assert_eq!((shrunk.objects, shrunk.mapped), (grown.objects, grown.mapped));
        // The first time the whole heap lay in the unplugged memory. Later it lies in boot memory,
        // and stays there.
        let first = moved == Bytes::ZERO;
        assert!(!first || shrunk.moved > Bytes::mib(31), "{shrunk:?}");
        moved = shrunk.moved;
    }
    vm.finish(size);
}

#[test]
fn objects_that_find_no_free_memory_are_reported_and_freed() {
    let config = Config { boot_memory: Bytes::mib(64), ..config(Bytes::gib(1)) };
    let mut vm = start(&config.with("heap", "96M").with("exit", "resizes:3"));
    vm.resize(Bytes::gib(1)).unwrap();
    let grown = heap(&mut vm);
    assert!(grown.mapped >= Bytes::mib(95), "{grown:?}");
    vm.request(Bytes::ZERO).unwrap();
    wait_until_kept(&mut vm, "free elsewhere");
    // The guest frees half of the objects.
    let freed = heap(&mut vm);
    assert_eq!(freed.objects, grown.objects / 2);
    assert!(freed.mapped.0 < grown.mapped.0 * 6 / 10, "{freed:?} of {grown:?}");
    vm.wait("end of the shrink", |event| matches!(event, Event::Resized { .. }).then_some(()))
        .unwrap();
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    vm.finish(Bytes::gib(1));
}

#[test]
fn an_object_that_cannot_be_moved_is_reported() {
    let size = Bytes::gib(1);
    let mut vm = start(&config(size).with("heap", "16M").with("pin", "on").with("exit", "size:2M"));
    vm.resize_checked(size);
    let grown = heap(&mut vm);
    vm.request(Bytes::ZERO).unwrap();
    wait_until_kept(&mut vm, "a page pinned by the kernel");
    // The guest unpinned the page then and freed no object.
    assert_eq!(heap(&mut vm).objects, grown.objects);
    vm.wait("end of the shrink", |event| matches!(event, Event::Resized { .. }).then_some(()))
        .unwrap();
    assert_eq!(heap(&mut vm).objects, grown.objects);
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    vm.finish(Bytes::mib(2));
}
