//! Tests of ArceOS with Hotmem as its only frame allocator, and of unchanged ArceOS to compare
//! with.

use crate::kernel::TestedKernel;
use hotmem::Bytes;
use hotmem_lab::port::{self, Kernel};
use std::time::Duration;

pub(crate) const PLAIN: TestedKernel = TestedKernel(port::ARCEOS);
const PAGING: TestedKernel = TestedKernel(port::ARCEOS_PAGING);
const SMP: TestedKernel = TestedKernel(port::ARCEOS_SMP);
const STOCK: TestedKernel = TestedKernel(port::ARCEOS_ALONE);

#[test]
fn memory_is_mapped_by_the_boot_code() {
    PLAIN.grows_and_shrinks(Bytes::gib(4));
}

#[test]
fn memory_is_mapped_by_arceos_itself() {
    PAGING.grows_and_shrinks(Bytes::gib(4));
}

/// Boots with memory maps that ArceOS's own allocator does not support: its bitmap covers 256 MiB,
/// and it manages one range.
#[test]
fn boots_with_memory_that_arceos_alone_does_not_boot_with() {
    STOCK.boot(false).unwrap();
    for boot_memory in [Bytes::gib(1), Bytes::gib(6)] {
        let stock =
            TestedKernel(Kernel { boot_memory, ..STOCK.0 }).boot(false).unwrap_err().to_string();
        assert!(stock.contains("bitmap capacity exceeded"), "{boot_memory}: {stock}");
        for kernel in [PLAIN, PAGING] {
            let found = TestedKernel(Kernel { boot_memory, ..kernel.0 }).boot(true).unwrap();
            assert_eq!(found, boot_memory, "{}", kernel.0.name);
        }
    }
}

#[test]
fn memory_is_plugged_and_unplugged_while_other_cpus_allocate() {
    SMP.changes_while_cpus_allocate();
}

#[test]
fn free_memory_is_returned_to_the_host() {
    PLAIN.reports_free_memory();
}

#[test]
fn memory_in_use_is_not_unplugged_until_it_is_freed() {
    PAGING.keeps_memory_in_use();
}

/// No object is moved: what leaves are the pageblocks without an object that stays in use.
#[test]
fn memory_leaves_after_a_mixed_load() {
    let percent = PAGING.leaves_after_mixed_load(Bytes::gib(2));
    assert!(percent >= 70, "{percent} %");
}

#[test]
fn devices_interrupt_and_plugged_memory_is_used_soon() {
    let median = PAGING.first_allocation();
    assert!(median <= Duration::from_millis(20), "{median:?}");
}

const PLUG: [Bytes; 2] = [Bytes::ZERO, Bytes::mib(512)];
const UNPLUG: [Bytes; 2] = [Bytes::mib(512), Bytes::ZERO];

/// Of 512 MiB, 32 MiB are plugged by each request.
#[test]
fn a_device_that_refuses_is_asked_again() {
    for (faults, why) in [
        ("nack=1:9", "the device answers NACK"),
        ("busy=1:9", "the device answers BUSY"),
        ("error=1:9", "the device answers ERROR"),
    ] {
        let stuck = PAGING.recovers_from(faults, PLUG);
        assert_eq!(stuck, (why.to_owned(), Bytes::mib(32)));
    }
    let stuck = PAGING.recovers_from("nack=16:9", UNPLUG);
    assert_eq!(stuck, ("the device answers NACK".to_owned(), Bytes::mib(512)));
    PLAIN.recovers_from_a_busy_device();
    PAGING.recovers_from_a_busy_device();
}

#[test]
fn a_device_with_an_invalid_answer_is_started_again() {
    for kernel in [PLAIN, PAGING] {
        let (why, plugged) = kernel.recovers_from("garbage=2:1", PLUG);
        assert_eq!(plugged, Bytes::mib(64));
        assert_eq!(why, "response: unknown response type 16962");
    }
}

#[test]
fn hooks_that_refuse_are_asked_again() {
    let stuck = |faults, sizes| PAGING.recovers_from(faults, sizes);
    let vetoed = |plugged| ("the host asks for a veto".to_owned(), plugged);
    assert_eq!(stuck("online=1:9", PLUG), vetoed(Bytes::mib(64)));
    // Each of its 256 pageblocks is refused in each of the first seven tries.
    assert_eq!(stuck("offline=0:1900", UNPLUG), vetoed(Bytes::mib(512)));
    // A failed mapping of 32 MiB is tried again in smaller parts, so that there are five sizes.
    let unmapped = ("mapped to something else".to_owned(), Bytes::mib(64));
    assert_eq!(stuck("map=2:45", PLUG), unmapped);
}
