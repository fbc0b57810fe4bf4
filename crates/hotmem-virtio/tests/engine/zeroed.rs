//! Tests which plugged memory is known to be zero.

use crate::machine::{GIB, Guest, MIB, Machine};
use core::time::Duration;
use hotmem::{AllocRequest, Budget, Bytes, Contents, OnlineType};
use hotmem_virtio::mem::HotplugMemory;

const SECOND: Duration = Duration::from_secs(1);
const SIZE: u64 = 256 * MIB;

/// Makes a guest that keeps zero marks, with a device that plugs zeroes.
fn guest(machine: &Machine, plugs_zeroes: bool) -> Guest<'_> {
    hotmem_testkit::keep_zero_marks(&machine.frames);
    let mut guest = Guest::new(machine, 2 * MIB, GIB, OnlineType::Movable);
    if plugs_zeroes {
        let memory = HotplugMemory::new(OnlineType::Movable, Budget { pageblocks: 64 });
        guest.memory = memory.with_zeroed_blocks();
    }
    guest
}

/// Allocates all pageblocks that are free, reads those that are known to be zero, writes to all,
/// and frees them. Returns how much was known to be zero.
fn use_all(machine: &Machine) -> Bytes {
    let request = AllocRequest::order(9).movable();
    let all = std::iter::from_fn(|| machine.frames.alloc_with_contents(request).ok());
    let mut zeroed = 0;
    for (allocation, contents) in all.collect::<Vec<_>>() {
        let is_zero = contents == Contents::Filled(0);
        for pfn in allocation.range().start().number()..allocation.range().end().number() {
            assert!(!is_zero || machine.read(pfn) == 0, "frame {pfn:#x} is not zero");
            machine.write(pfn, 1);
        }
        zeroed += if is_zero { allocation.range().frames() } else { 0 };
    }
    Bytes(zeroed << 12)
}

/// Plugs, uses and unplugs memory. The host discards what it has unplugged. Returns how much was
/// known to be zero.
fn plug_and_use(machine: &Machine, guest: &mut Guest<'_>) -> Bytes {
    guest.resize(SIZE);
    guest.run(SECOND);
    guest.assert_reached();
    let zeroed = use_all(machine);
    assert_eq!(use_all(machine), Bytes::ZERO, "it was used");
    guest.resize(0);
    guest.run(SECOND);
    guest.assert_reached();
    let region = guest.driver.config().managed();
    let pfns = region.start().number()..region.start().number() + Bytes(SIZE).frames();
    pfns.for_each(|pfn| machine.write(pfn, 0));
    zeroed
}

#[test]
fn plugged_blocks_are_zero_if_the_kernel_knows_that_its_device_plugs_zeroes() {
    for (plugs_zeroes, expected) in [(false, Bytes::ZERO), (true, Bytes(SIZE))] {
        let machine = Machine::new();
        let mut guest = guest(&machine, plugs_zeroes);
        for _ in 0..3 {
            assert_eq!(plug_and_use(&machine, &mut guest), expected);
        }
    }
}

#[test]
fn memory_that_was_plugged_before_the_driver_asked_is_not_known_to_be_zero() {
    let machine = Machine::new();
    let mut guest = guest(&machine, true);
    (0..SIZE / (2 * MIB)).for_each(|block| guest.device.preplug(block as usize));
    guest.resize(2 * SIZE);
    guest.run(SECOND);
    guest.assert_reached();
    // The first half was adopted.
    assert_eq!(use_all(&machine), Bytes(SIZE));
}
