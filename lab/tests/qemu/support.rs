//! Helpers for the tests under QEMU.

use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Resize, Vm, image};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// The longest that a test waits for anything. Only a hang takes so long, even on a slow and busy
/// host.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The guest's own limit, which is shorter because the guest can say what it waits for.
const WATCHDOG: Duration = Duration::from_secs(240);

static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| image::find(None).expect("the guest builds"));

/// A running machine.
pub(crate) struct Machine {
    vm: Vm,
    boot_memory: Bytes,
    /// The memory that is online without what is plugged.
    online_at_boot: Option<Bytes>,
}

/// Returns a machine of 128 MiB with a device of this size.
pub(crate) fn config(device_memory: Bytes) -> Config {
    let config = Config::new(IMAGE.clone(), device_memory).with("watchdog", WATCHDOG.as_secs());
    Config { patience: PATIENCE, ..config }
}

/// Calls `look` repeatedly until it returns a value, and fails after [`PATIENCE`].
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "no {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts the machine and waits until the guest has initialised its device.
pub(crate) fn start(config: &Config) -> Machine {
    start_and_see(config).0
}

/// Does the same as [`start`], and also returns how the device interrupts, as the guest says.
pub(crate) fn start_and_see(config: &Config) -> (Machine, String) {
    let mut vm = Vm::start(config).unwrap();
    let device = |event: &Event| match event {
        Event::Device { interrupts, .. } => Some(interrupts.clone()),
        _ => None,
    };
    let (interrupts, _) = vm.wait("device", device).unwrap();
    let boot_memory = config.boot_memory;
    (Machine { vm, boot_memory, online_at_boot: None }, interrupts)
}

/// Resizes a device of this many blocks of 2 MiB to random sizes from this seed. Now and then it
/// does not wait for the end of the previous request.
pub(crate) fn random_resizes(seed: u64, times: u32, blocks: u64, config: impl Fn(Bytes) -> Config) {
    let block = Bytes::mib(2);
    let last = Bytes::mib(6);
    let config = config(Bytes(block.0 * blocks)).with("seed", seed);
    let mut vm = start(&config.with("exit", format!("size:{}", last.0)));
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..times {
        let mut target = || loop {
            let target = Bytes(block.0 * random.random_range(0..=blocks));
            if target != last {
                return target;
            }
        };
        let (hurried, awaited) = (target(), target());
        if hurried.0.is_multiple_of(3) {
            vm.request(hurried).unwrap();
        }
        vm.resize_checked(awaited);
    }
    vm.finish(last);
}

impl Machine {
    /// Resizes, and checks what the device and the guest report.
    pub(crate) fn resize_checked(&mut self, target: Bytes) -> Resize {
        let resize = self.vm.resize(target).unwrap();
        assert_eq!(self.vm.device_size().unwrap(), target);
        let beside = Bytes(resize.online.0.checked_sub(target.0).expect("all that is plugged"));
        // The firmware reserves a part of the lowest MiB.
        assert!(beside <= self.boot_memory && beside + Bytes::mib(1) > self.boot_memory);
        assert_eq!(*self.online_at_boot.get_or_insert(beside), beside, "after {target}");
        resize
    }

    /// Makes a last request and waits until the guest ends and reports success. Returns how many
    /// bytes the guest wrote to describe memory.
    pub(crate) fn finish(mut self, last: Bytes) -> Bytes {
        self.vm.request(last).unwrap();
        self.vm.finish().unwrap().unwrap_or_default()
    }
}

impl Deref for Machine {
    type Target = Vm;
    fn deref(&self) -> &Vm {
        &self.vm
    }
}

impl DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut Vm {
        &mut self.vm
    }
}
