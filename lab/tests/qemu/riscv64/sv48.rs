//! Tests of the guest with page tables of four levels. `cargo xtask deep` runs them, because the guest is
//! built once more for them.

use super::config;
use crate::support::{reason_for_giving_up, wait_for_touched};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Vm, image};
use std::path::PathBuf;
use std::sync::LazyLock;

static IMAGE: LazyLock<PathBuf> =
    LazyLock::new(|| image::find_riscv64_sv48().expect("the guest could not be built"));

/// More than Sv39's direct map, which has 192 GiB.
const LATE: Bytes = Bytes::gib(600);

#[test]
fn more_memory_than_three_levels_can_map_is_added_used_and_removed() {
    let touched = Bytes::mib(64);
    let config = config(LATE).with_touched_memory(touched).with_guest_option("exit", "resizes:3");
    let config = Config { kernel: IMAGE.clone(), cpus: 2, ..config };
    let mut vm = Vm::start(&config).unwrap();
    for is_removal in [false, true, false] {
        let change = |event: &Event| match *event {
            Event::LateAdded { online, .. } if !is_removal => Some(online),
            Event::LateRemoved { online, .. } if is_removal => Some(online),
            _ => None,
        };
        let present = if is_removal { Bytes::ZERO } else { LATE };
        let (online, _) = vm.wait("change of the memory", change).unwrap();
        assert_eq!(online, (config.boot_memory + present).0);
        if !is_removal {
            assert_eq!(wait_for_touched(&mut vm), touched);
        }
    }
    vm.finish().unwrap();
}

#[test]
fn memory_beyond_the_direct_map_of_three_levels_is_refused_by_name() {
    let reason = reason_for_giving_up(&config(LATE));
    assert!(reason.contains("lies beyond the area of the direct map"), "{reason}");
}
