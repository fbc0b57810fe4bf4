//! What the tests share.

use hotmem::Bytes;
use hotmem_lab::qemu::{Config, Event, Resize, Vm, image};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The longest that anything is waited for: only a hang takes so long, however slow and busy the
/// machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// Less, since the guest knows what it hangs in.
const WATCHDOG: Duration = Duration::from_secs(240);

/// One machine at a time: each keeps a core busy, and some tests measure.
static TURN: Mutex<()> = Mutex::new(());

static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| image::find(None).expect("the guest builds"));

/// A running machine whose turn it is.
pub(crate) struct Machine {
    // Dropped first: the turn ends when QEMU is gone.
    vm: Vm,
    _turn: MutexGuard<'static, ()>,
    boot_memory: Bytes,
    /// Online beside what is plugged.
    online_at_boot: Option<Bytes>,
}

/// Returns a machine of 128 MiB with a device of this size.
pub(crate) fn config(device_memory: Bytes) -> Config {
    let config = Config::new(IMAGE.clone(), device_memory).with("watchdog", WATCHDOG.as_secs());
    Config { patience: PATIENCE, ..config }
}

/// Looks again and again until there is what is looked for.
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

/// Returns the right to start a machine.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the machine and waits until the guest drives its device.
pub(crate) fn start(config: &Config) -> Machine {
    start_and_see(config).0
}

/// Returns the same, with what the guest says of the device: how it interrupts.
pub(crate) fn start_and_see(config: &Config) -> (Machine, String) {
    let turn = turn();
    let mut vm = Vm::start(config).unwrap();
    let device = |event: &Event| match event {
        Event::Device { interrupts, .. } => Some(interrupts.clone()),
        _ => None,
    };
    let (interrupts, _) = vm.wait("device", device).unwrap();
    let boot_memory = config.boot_memory;
    (Machine { vm, _turn: turn, boot_memory, online_at_boot: None }, interrupts)
}

/// Resizes a device of this many blocks of 2 MiB at random, from this seed, now and then without
/// waiting for the request before.
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
    /// Resizes and checks what device and guest say of it.
    pub(crate) fn resize_checked(&mut self, target: Bytes) -> Resize {
        let resize = self.vm.resize(target).unwrap();
        assert_eq!(self.vm.device_size().unwrap(), target);
        let beside = Bytes(resize.online.0.checked_sub(target.0).expect("all that is plugged"));
        // The firmware keeps some of the lowest MiB.
        assert!(beside <= self.boot_memory && beside + Bytes::mib(1) > self.boot_memory);
        assert_eq!(*self.online_at_boot.get_or_insert(beside), beside, "after {target}");
        resize
    }

    /// Returns the guest's own verdict on the run, after a last request. Returns how much it wrote
    /// to describe the memory that came.
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
