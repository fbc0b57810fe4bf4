//! Tests of page migration: memory is unplugged while other CPUs write to it by virtual addresses.
//!
//! The guest fails if a page does not hold what was written to it, or if its Dirty bit is wrong.

use crate::support::{Machine, config, start};
use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event};

#[derive(Clone, Copy, Debug)]
struct Written {
    pages: u64,
    writes: u64,
    moved: u64,
    dirty: u64,
    clean: u64,
}

fn written(vm: &mut Machine) -> Written {
    let written = |event: &Event| match *event {
        Event::Written { pages, writes, moved, dirty, clean } => {
            Some(Written { pages, writes, moved, dirty, clean })
        }
        _ => None,
    };
    vm.wait("what was written", written).unwrap().0
}

#[test]
fn no_write_and_no_dirty_bit_is_lost_while_memory_is_unplugged() {
    let (size, memory) = (Bytes::mib(512), Bytes::mib(16));
    let rounds = if std::env::var_os("HOTMEM_DEEP").is_some() { 100 } else { 4 };
    // Whether a page is written to between two checks is chance. The test makes more rounds until
    // both cases have occurred.
    let most = 10 * rounds;
    let config = Config { cpus: 4, ..config(size).touching(Bytes::ZERO) };
    let mut vm = start(&config.with("writers", memory.0).with("exit", "size:2M"));
    let (mut writes, mut dirty, mut clean) = (0, 0, 0);
    for round in 0..most {
        if round >= rounds && dirty > 0 && clean > 0 {
            break;
        }
        vm.resize_checked(size);
        let grown = written(&mut vm);
        assert_eq!(grown.pages, memory.frames());
        vm.resize_checked(Bytes::ZERO);
        let shrunk = written(&mut vm);
        println!("{shrunk:?}");
        assert!(shrunk.moved >= grown.moved + memory.0, "all of it was in memory that has gone");
        assert!(shrunk.writes > grown.writes && grown.writes >= writes, "{grown:?} {shrunk:?}");
        writes = shrunk.writes;
        (dirty, clean) = (dirty + shrunk.dirty, clean + shrunk.clean);
    }
    assert!(dirty > 0 && clean > 0, "{dirty} {clean}");
    vm.finish(Bytes::mib(2));
}
