//! Tests of page migration. Memory is unplugged while other CPUs write to it by virtual addresses.
//!
//! The guest fails if a write to a page is lost, or if the Dirty flag of a page is incorrect.

use crate::support::{Machine, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event};

/// The counts of a report of the guest, as [`Event::Written`] describes them.
#[derive(Clone, Copy, Debug)]
struct WriteCounts {
    pages: u64,
    writes: u64,
    migrated_bytes: u64,
    dirty_pages: u64,
    clean_pages: u64,
}

fn wait_for_counts(vm: &mut Machine) -> WriteCounts {
    let written = |event: &Event| match *event {
        Event::Written { pages, writes, moved, dirty, clean } => Some(WriteCounts {
            pages,
            writes,
            migrated_bytes: moved,
            dirty_pages: dirty,
            clean_pages: clean,
        }),
        _ => None,
    };
    vm.wait("report of the writes", written).unwrap().0
}

#[test]
fn no_write_and_no_dirty_bit_is_lost_while_memory_is_unplugged() {
    let (size, memory) = (Bytes::mib(512), Bytes::mib(16));
    let rounds = if std::env::var_os("HOTMEM_DEEP").is_some() { 100 } else { 4 };
    // Whether the CPUs write to a page between two reports depends on their speed. The test makes
    // more rounds until some pages were written to and some were not.
    let max_rounds = 10 * rounds;
    let config = Config { cpus: 4, ..config(size).with_touched_memory(Bytes::ZERO) };
    let mut vm =
        start(&config.with_guest_option("writers", memory.0).with_guest_option("exit", "size:2M"));
    let (mut writes, mut dirty, mut clean) = (0, 0, 0);
    for round in 0..max_rounds {
        if round >= rounds && dirty > 0 && clean > 0 {
            break;
        }
        vm.resize_checked(size);
        let before = wait_for_counts(&mut vm);
        assert_eq!(before.pages, memory.frames());
        vm.resize_checked(Bytes::ZERO);
        let after = wait_for_counts(&mut vm);
        println!("{after:?}");
        assert!(
            after.migrated_bytes >= before.migrated_bytes + memory.0,
            "not all pages were migrated"
        );
        assert!(after.writes > before.writes && before.writes >= writes, "{before:?} {after:?}");
        writes = after.writes;
        (dirty, clean) = (dirty + after.dirty_pages, clean + after.clean_pages);
    }
    assert!(dirty > 0 && clean > 0, "{dirty} {clean}");
    vm.finish(Bytes::mib(2));
}
