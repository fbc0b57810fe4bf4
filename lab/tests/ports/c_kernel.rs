//! Tests of a kernel in C.

use hotmem::Bytes;
use hotmem_lab::qemu::{Balloon, Config, Event, Vm};
use hotmem_lab::resident::{Watch, resident};
use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

const BOOT_MEMORY: Bytes = Bytes::mib(128);
/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(300);
/// Held while a machine runs, so that there is one at a time.
static TURN: Mutex<()> = Mutex::new(());

fn config(memory: Bytes) -> Config {
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ports/c/kernel");
    let config = Config::new(image, memory).touching(memory);
    Config { boot_memory: BOOT_MEMORY, patience: PATIENCE, ..config }
}

/// Starts a guest, and waits until it has booted.
fn boot(config: &Config) -> Vm {
    let mut vm = Vm::start(config).unwrap();
    let boot = |event: &Event| match event {
        Event::Boot { boot_memory, .. } => Some(Bytes(*boot_memory)),
        _ => None,
    };
    assert_eq!(vm.wait("boot", boot).unwrap().0, BOOT_MEMORY);
    vm
}

/// Waits until the guest has written and checked its memory. Returns how much that was.
fn verified(vm: &mut Vm) -> Bytes {
    let verified = |event: &Event| match event {
        Event::Verified { bytes } => Some(Bytes(*bytes)),
        _ => None,
    };
    vm.wait("the use of the memory", verified).unwrap().0
}

/// Tells the guest that there are no more requests, and waits until it ends and reports success.
fn end(mut vm: Vm) {
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

#[test]
fn grows_by_4_gib_and_gives_them_back() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = Bytes::gib(4);
    let mut vm = boot(&config(memory));
    let grown = vm.resize(memory).unwrap();
    assert_eq!(grown.online, BOOT_MEMORY + memory);
    // The guest uses pieces of 64 MiB: all of the plugged memory, and what it can spare of boot
    // memory.
    let used = verified(&mut vm);
    assert!(used >= memory && used <= BOOT_MEMORY + memory, "{used} of {memory} were used");
    let shrunk = vm.resize(Bytes::ZERO).unwrap();
    assert_eq!(shrunk.online, BOOT_MEMORY);
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    end(vm);
    println!(
        "the kernel in C: {memory} came in {:?}, {used} were checked, and left in {:?}",
        grown.recognised, shrunk.recognised
    );
}

/// Memory that is in use does not leave, and the kernel says so. Freed, it leaves.
#[test]
fn memory_in_use_stays_until_it_is_freed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = Bytes::mib(1024 + 32);
    let mut vm = boot(&config(memory));
    vm.resize(memory).unwrap();
    verified(&mut vm);
    vm.request(Bytes::ZERO).unwrap();
    let pending = |event: &Event| match event {
        Event::Pending { plugged, why, .. } => Some((Bytes(*plugged), why.clone())),
        _ => None,
    };
    let ((left, why), _) = vm.wait("what is in the way", pending).unwrap();
    assert!(left >= Bytes::mib(1024 - 128) && left <= memory, "{left} are left: {why}");
    let gone = |event: &Event| matches!(event, Event::Resized { target: 0, .. }).then_some(());
    vm.wait("the end of the request", gone).unwrap();
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    end(vm);
    println!("the kernel in C: {left} of {memory} stayed while in use: {why}");
}

/// A guest that has used its memory reports it free, and the host has it back.
#[test]
fn free_memory_goes_back_to_the_host() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = Bytes::gib(1);
    let mut vm = boot(&Config { balloon: Balloon::Reports, ..config(memory) });
    let watch = Watch::start(vm.pid(), Duration::from_millis(5));
    vm.resize(memory).unwrap();
    verified(&mut vm);
    let mut bytes = Bytes::ZERO;
    while bytes < memory {
        let reported = |event: &Event| match event {
            Event::Reported { bytes, .. } => Some(Bytes(*bytes)),
            _ => None,
        };
        bytes = bytes + vm.wait("reports of what was used", reported).unwrap().0;
    }
    let after = resident(vm.pid()).unwrap();
    let most = watch.finish().iter().map(|sample| sample.resident).max().unwrap();
    assert!(most >= memory, "{most} held at most");
    assert!(after.0 < most.0 / 4, "the host holds {after} of {most}");
    assert_eq!(vm.resize(Bytes::ZERO).unwrap().online, BOOT_MEMORY);
    end(vm);
    println!("the kernel in C: the host holds {most} while in use, {after} when free");
}
