//! Tests of ArceOS with Hotmem as its only frame allocator, and of unmodified ArceOS as the peer.

use crate::kernel::{TestedKernel, assert_is_ram_of};
use hotmem::Bytes;
use hotmem_lab::{
    port::{self, Kernel},
    qemu::Config,
};
use hotmem_time_limit::scaled;
use std::time::Duration;

pub(crate) const ARCEOS: TestedKernel = TestedKernel(port::ARCEOS);
/// ArceOS, which maps the plugged memory itself.
const PAGING: TestedKernel = TestedKernel(port::ARCEOS_PAGING);
const SMP: TestedKernel = TestedKernel(port::ARCEOS_SMP);
const UNMODIFIED_ARCEOS: TestedKernel = TestedKernel(port::ARCEOS_STOCK);

#[test]
fn memory_that_the_boot_code_maps_is_plugged_used_and_unplugged() {
    ARCEOS.plugs_and_unplugs(Bytes::gib(4));
}

#[test]
fn memory_that_arceos_maps_is_plugged_used_and_unplugged() {
    PAGING.plugs_and_unplugs(Bytes::gib(4));
}

/// ArceOS's own allocator does not support these memory maps, because its bitmap covers 256 MiB and
/// it manages one range.
#[test]
fn arceos_boots_with_boot_memory_that_its_own_allocator_does_not_support() {
    UNMODIFIED_ARCEOS.boot(false).unwrap();
    for boot_memory in [Bytes::gib(1), Bytes::gib(6)] {
        let error = TestedKernel(Kernel { boot_memory, ..UNMODIFIED_ARCEOS.0 })
            .boot(false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("bitmap capacity exceeded"), "{boot_memory}: {error}");
        for kernel in [ARCEOS, PAGING] {
            let reported = TestedKernel(Kernel { boot_memory, ..kernel.0 }).boot(true).unwrap();
            assert_is_ram_of(reported, boot_memory);
        }
    }
}

/// ArceOS is built for the addresses of one machine. On `pc`, whose PCI has no memory-mapped
/// configuration space, it cannot find its device.
#[test]
fn a_machine_without_a_mapped_configuration_space_is_refused() {
    for kernel in [ARCEOS, PAGING] {
        let reason = kernel.refuses(|config| Config {
            machine: "pc",
            other_objects: vec!["memory-backend-ram,id=plugged,size=64M"],
            other_device_options: vec!["virtio-mem-pci,memdev=plugged"],
            ..config
        });
        assert!(reason.contains("PCI is not mapped at 0xb0000000"), "{reason}");
    }
}

#[test]
fn memory_is_plugged_and_unplugged_while_other_cpus_allocate() {
    SMP.resizes_while_cpus_allocate();
}

#[test]
fn free_memory_is_returned_to_the_host() {
    ARCEOS.reports_free_memory();
}

#[test]
fn memory_in_use_is_not_unplugged_until_it_is_freed() {
    PAGING.keeps_memory_in_use();
}

/// Objects are not migrated, so only pageblocks without objects in use are unplugged.
#[test]
fn most_memory_is_unplugged_after_a_mixed_load() {
    let percent = PAGING.unplugged_after_mixed_load(Bytes::gib(2), true);
    assert!(percent >= 70, "{percent} %");
}

/// The limit is 20 ms on an idle host.
#[test]
fn plugged_memory_is_used_soon_after_the_request() {
    let median = PAGING.first_allocation();
    assert!(median <= scaled(Duration::from_millis(20)), "{median:?}");
}

/// An interrupt may arrive at any time while the kernel begins to wait for it.
#[test]
fn requests_that_arrive_while_the_kernel_begins_to_wait_are_carried_out() {
    PAGING.carries_out_successive_requests();
}

/// The sizes before and after a plug, and before and after an unplug.
const PLUG: [Bytes; 2] = [Bytes::ZERO, Bytes::mib(512)];
const UNPLUG: [Bytes; 2] = [Bytes::mib(512), Bytes::ZERO];

/// Each request of the driver plugs 32 MiB of the 512 MiB.
#[test]
fn requests_that_the_device_refuses_are_made_again() {
    for (faults, reason) in [
        ("nack=1:9", "the device answers NACK"),
        ("busy=1:9", "the device answers BUSY"),
        // After each of the first four errors, the driver requests half as much at once. It waits
        // only after the other nine, and reports the reason after the seventh.
        ("error=1:13", "the device answers ERROR"),
    ] {
        let pending = PAGING.recovers_from(faults, PLUG);
        assert_eq!(pending, (reason.to_owned(), Bytes::mib(32)));
    }
    let pending = PAGING.recovers_from("nack=16:9", UNPLUG);
    assert_eq!(pending, ("the device answers NACK".to_owned(), Bytes::mib(512)));
    ARCEOS.recovers_from_a_busy_device();
    PAGING.recovers_from_a_busy_device();
}

#[test]
fn a_device_with_an_invalid_answer_is_reset() {
    for kernel in [ARCEOS, PAGING] {
        let (reason, plugged) = kernel.recovers_from("garbage=2:1", PLUG);
        assert_eq!(plugged, Bytes::mib(64));
        assert_eq!(reason, "response: the response type 16962 is unknown");
    }
}

#[test]
fn hooks_that_refuse_are_called_again() {
    let check = |faults, sizes, reason: &str, plugged| {
        let (found, still_plugged) = PAGING.recovers_from(faults, sizes);
        assert!(found.contains(reason), "{faults}: {found}");
        assert_eq!(still_plugged, plugged, "{faults}");
    };
    let veto = "refused by the kernel (the host asks for a veto)";
    check("online=1:9", PLUG, veto, Bytes::mib(64));
    // The hook refuses each of the 256 pageblocks in each of the first seven tries.
    check("offline=0:1900", UNPLUG, veto, Bytes::mib(512));
    // After a failed mapping of 32 MiB, smaller parts are tried, so that mappings of five sizes
    // fail.
    check("map=2:45", PLUG, "mapped to something else", Bytes::mib(64));
}
