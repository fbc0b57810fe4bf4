//! Memory that other CPUs write to, through addresses behind which it moves, goes away.
//!
//! The guest finds that each page holds what was written to it, and that its Dirty bit says whether
//! anything was, or gives up.

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
fn no_write_is_lost_and_no_dirty_bit_while_memory_goes() {
    let (size, memory) = (Bytes::mib(512), Bytes::mib(16));
    let rounds = if std::env::var_os("HOTMEM_DEEP").is_some() { 100 } else { 4 };
    let config = Config { cpus: 4, ..config(size).touching(Bytes::ZERO) };
    let mut vm = start(&config.with("writers", memory.0).with("exit", "size:2M"));
    let mut last = Written { pages: 0, writes: 0, moved: 0, dirty: 0, clean: 0 };
    for _ in 0..rounds {
        vm.resize_checked(size);
        let grown = written(&mut vm);
        assert_eq!(grown.pages, memory.frames());
        vm.resize_checked(Bytes::ZERO);
        let shrunk = written(&mut vm);
        assert!(shrunk.moved >= grown.moved + memory.0, "all of it was in memory that has gone");
        assert!(shrunk.writes > grown.writes && grown.writes >= last.writes, "{shrunk:?}");
        assert!(shrunk.dirty > 0 && shrunk.clean > 0, "{shrunk:?}");
        last = shrunk;
    }
    println!("{last:?}");
    vm.finish(Bytes::mib(2));
}
