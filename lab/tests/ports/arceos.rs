//! Tests of ArceOS with Hotmem as its only frame allocator, and of unchanged ArceOS to compare
//! with.

use hotmem::Bytes;
use hotmem_lab::qemu::{Balloon, Config, Error, Event, Vm};
use hotmem_lab::resident::{Watch, resident};
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Held while a machine runs, so that there is one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A kernel that `cargo xtask ports arceos` builds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Image {
    /// ArceOS's boot code maps memory.
    Plain,
    /// ArceOS maps memory itself, and has threads and interrupts.
    Paging,
    /// As `Paging`, with four CPUs, of which three allocate and free all the time.
    Smp,
    /// ArceOS with its own allocator.
    Stock,
}

impl Image {
    fn path(self) -> PathBuf {
        let (dir, name) = match self {
            Image::Plain => ("a", "hotmem-arceos"),
            Image::Paging => ("b", "hotmem-arceos"),
            Image::Smp => ("smp", "hotmem-arceos"),
            Image::Stock => ("stock", "hotmem-arceos-stock"),
        };
        let ports = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ports");
        ports.join(dir).join("x86_64-unknown-none/release").join(name)
    }
}

fn config(image: Image, boot_memory: Bytes, device_memory: Bytes) -> Config {
    let config = Config::new(image.path(), device_memory).touching(device_memory);
    Config { boot_memory, patience: PATIENCE, ..config }
}

/// Boots with this memory and without a device. Returns how much memory the kernel found.
fn boot(image: Image, memory: Bytes) -> Result<Bytes, Error> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut vm = Vm::start(&config(image, memory, Bytes::ZERO))?;
    let mut found = Bytes::ZERO;
    if image != Image::Stock {
        (found, _) = vm.wait("boot", |event| match event {
            Event::Boot { boot_memory, .. } => Some(Bytes(*boot_memory)),
            _ => None,
        })?;
    }
    vm.finish()?;
    Ok(found)
}

/// Tells the guest that there are no more requests, and waits until it ends and reports success.
fn end(mut vm: Vm) {
    vm.request(Bytes::mib(2)).unwrap();
    vm.finish().unwrap();
}

/// Plugs memory into a guest of 128 MiB, which uses all of it, and unplugs it.
pub(crate) fn grows_and_shrinks(image: Image, memory: Bytes) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut vm = Vm::start(&config(image, Bytes::mib(128), memory)).unwrap();
    let boot = |event: &Event| match event {
        Event::Boot { boot_memory, .. } => Some(Bytes(*boot_memory)),
        _ => None,
    };
    let (boot_memory, _) = vm.wait("boot", boot).unwrap();
    assert_eq!(boot_memory, Bytes::mib(128));

    let grown = vm.resize(memory).unwrap();
    assert_eq!(grown.online, boot_memory + memory);
    let verified = |event: &Event| match event {
        Event::Verified { bytes } => Some(Bytes(*bytes)),
        _ => None,
    };
    let (used, _) = vm.wait("the use of the memory", verified).unwrap();
    // The guest uses pieces of 64 MiB: all of the plugged memory, and what it can spare of boot
    // memory.
    assert!(used >= memory && used <= boot_memory + memory, "{used} of {memory} were used");

    let shrunk = vm.resize(Bytes::ZERO).unwrap();
    assert_eq!(shrunk.online, boot_memory);
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    end(vm);
    println!(
        "{image:?}: {memory} came in {:?}, {used} were checked, and left in {:?}",
        grown.recognised, shrunk.recognised
    );
}

#[test]
fn memory_is_mapped_by_the_boot_code() {
    grows_and_shrinks(Image::Plain, Bytes::gib(4));
}

#[test]
fn memory_is_mapped_by_arceos_itself() {
    grows_and_shrinks(Image::Paging, Bytes::gib(4));
}

/// Boots with maps of memory that ArceOS's own allocator does not support: its bitmap is for 256
/// MiB, and it manages one range.
#[test]
fn boots_with_memory_that_arceos_alone_does_not_boot_with() {
    boot(Image::Stock, Bytes::mib(128)).unwrap();
    for memory in [Bytes::gib(1), Bytes::gib(6)] {
        let stock = boot(Image::Stock, memory).unwrap_err().to_string();
        assert!(stock.contains("bitmap capacity exceeded"), "{memory}: {stock}");
        for image in [Image::Plain, Image::Paging] {
            assert_eq!(boot(image, memory).unwrap(), memory, "{image:?}");
        }
    }
}

/// Plugs and unplugs memory a hundred times while all CPUs allocate, and unplugs all of it at the
/// end.
#[test]
fn memory_comes_and_goes_while_other_cpus_allocate() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let most = Bytes::gib(1);
    let mut vm =
        Vm::start(&Config { cpus: 4, ..config(Image::Smp, Bytes::mib(128), most) }).unwrap();
    let boot = |event: &Event| matches!(event, Event::Boot { cpus: 4, .. }).then_some(());
    vm.wait("boot with four CPUs", boot).unwrap();
    let mut slowest = Duration::ZERO;
    for round in 0..50 {
        for size in [most, Bytes::mib(64 * (1 + round % 7))] {
            slowest = slowest.max(vm.resize(size).unwrap().recognised);
        }
    }
    slowest = slowest.max(vm.resize(Bytes::ZERO).unwrap().recognised);
    end(vm);
    println!("101 resizes of a guest with four busy CPUs, the slowest in {slowest:?}");
}

/// A guest that has used its memory reports it free, and the host has it back.
#[test]
fn free_memory_goes_back_to_the_host() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = Bytes::gib(1);
    let config =
        Config { balloon: Balloon::Reports, ..config(Image::Plain, Bytes::mib(128), memory) };
    let mut vm = Vm::start(&config).unwrap();
    let watch = Watch::start(vm.pid(), Duration::from_millis(5));
    vm.wait("boot", |event| matches!(event, Event::Boot { .. }).then_some(())).unwrap();
    vm.resize(memory).unwrap();
    vm.wait("the use", |event| matches!(event, Event::Verified { .. }).then_some(())).unwrap();
    let reported = |event: &Event| match event {
        Event::Reported { bytes, .. } => Some(Bytes(*bytes)),
        _ => None,
    };
    let (bytes, _) = vm.wait("reports of what was used", reported).unwrap();
    let after = resident(vm.pid()).unwrap();
    let most = watch.finish().iter().map(|sample| sample.resident).max().unwrap();
    assert!(bytes >= memory && most >= memory, "{bytes} reported, {most} held at most");
    assert!(after.0 < most.0 / 4, "the host holds {after} of {most}");
    // What was reported can be used again, and leaves.
    assert_eq!(vm.resize(Bytes::ZERO).unwrap().online, Bytes::mib(128));
    end(vm);
    println!("held by the host: {} bytes while in use, {} when free", most.0, after.0);
}

/// Memory that is in use does not leave, and the kernel says so. Freed, it leaves.
#[test]
fn memory_in_use_stays_until_it_is_freed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = Bytes::mib(1024 + 32);
    let mut vm = Vm::start(&config(Image::Paging, Bytes::mib(128), memory)).unwrap();
    vm.wait("boot", |event| matches!(event, Event::Boot { .. }).then_some(())).unwrap();
    vm.resize(memory).unwrap();
    vm.wait("the use", |event| matches!(event, Event::Verified { .. }).then_some(())).unwrap();
    vm.request(Bytes::ZERO).unwrap();
    let pending = |event: &Event| match event {
        Event::Pending { plugged, why, .. } => Some((Bytes(*plugged), why.clone())),
        _ => None,
    };
    let ((left, why), _) = vm.wait("what is in the way", pending).unwrap();
    // All pieces of 64 MiB but those in boot memory, of which there are fewer than 128 MiB.
    assert!(left >= Bytes::mib(1024 - 128) && left <= memory, "{left} are left: {why}");
    let gone = |event: &Event| matches!(event, Event::Resized { target: 0, .. }).then_some(());
    vm.wait("the end of the request", gone).unwrap();
    assert_eq!(vm.device_size().unwrap(), Bytes::ZERO);
    end(vm);
    println!("{left} of {memory} stayed while in use: {why}");
}
