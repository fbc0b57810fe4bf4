//! Helpers for the tests under QEMU.

use hotmem::Bytes;
use hotmem_lab::patience;
use hotmem_lab::qemu::{Config, Error, Event, Resize, Vm, image};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
    process::Command,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// The part of [`patience`] after which the guest's watchdog ends the guest. The watchdog names the
/// operation that hangs.
const WATCHDOG_PERCENT: u32 = 80;

static IMAGE: LazyLock<PathBuf> =
    LazyLock::new(|| image::find(None).expect("the guest could not be built"));

/// A running machine.
pub(crate) struct Machine {
    vm: Vm,
    boot_memory: Bytes,
    /// The online memory without the plugged memory, from the first resize on.
    online_boot_memory: Option<Bytes>,
}

/// Returns a machine with 128 MiB of boot memory and a virtio-mem device of `device_memory`.
pub(crate) fn config(device_memory: Bytes) -> Config {
    let patience = patience();
    let watchdog = patience * WATCHDOG_PERCENT / 100;
    let config =
        Config::new(IMAGE.clone(), device_memory).with_guest_option("watchdog", watchdog.as_secs());
    Config { patience, ..config }
}

/// Calls `find` repeatedly until it returns a value. Panics after [`patience`], and names `awaited`.
#[track_caller]
pub(crate) fn wait_for<T>(awaited: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(started.elapsed() < patience(), "no {awaited}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts the machine and waits until the guest has initialised its device.
pub(crate) fn start(config: &Config) -> Machine {
    start_with_interrupts(config).0
}

/// Starts the machine as [`start`] does. Also returns the way in which the device interrupts:
/// `msix`, `intx` or `poll`.
pub(crate) fn start_with_interrupts(config: &Config) -> (Machine, String) {
    let mut vm = Vm::start(config).unwrap();
    let device = |event: &Event| match event {
        Event::Device { interrupts, .. } => Some(interrupts.clone()),
        _ => None,
    };
    let (interrupts, _) = vm.wait("device", device).unwrap();
    let boot_memory = config.boot_memory;
    (Machine { vm, boot_memory, online_boot_memory: None }, interrupts)
}

/// Resizes a device of `blocks` blocks of 2 MiB `times` times to random sizes. Before some of the
/// resizes, another size is requested, and the next request does not wait for its end.
pub(crate) fn random_resizes(seed: u64, times: u32, blocks: u64, config: impl Fn(Bytes) -> Config) {
    let block = Bytes::mib(2);
    let last = Bytes::mib(6);
    let config = config(Bytes(block.0 * blocks)).with_guest_option("seed", seed);
    let mut vm = start(&config.with_guest_option("exit", format!("size:{}", last.0)));
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..times {
        let mut target = || loop {
            let target = Bytes(block.0 * random.random_range(0..=blocks));
            if target != last {
                return target;
            }
        };
        let (replaced, awaited) = (target(), target());
        if replaced.0.is_multiple_of(3) {
            vm.request(replaced).unwrap();
        }
        vm.resize_checked(awaited);
    }
    vm.finish(last);
}

impl Machine {
    /// Resizes the device to `target`, and checks the sizes that the device and the guest report.
    pub(crate) fn resize_checked(&mut self, target: Bytes) -> Resize {
        let resize = self.vm.resize(target).unwrap();
        assert_eq!(self.vm.device_size().unwrap(), target);
        let online = resize.online.0.checked_sub(target.0);
        let boot_memory = Bytes(online.expect("plugged memory is not online"));
        // The firmware reserves a part of the lowest MiB.
        assert!(boot_memory <= self.boot_memory && boot_memory + Bytes::mib(1) > self.boot_memory);
        let expected = *self.online_boot_memory.get_or_insert(boot_memory);
        assert_eq!(boot_memory, expected, "after {target}");
        resize
    }

    /// Makes the last request and waits for the guest's verdict PASS. Returns the size of the
    /// metadata that the guest has written.
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

/// How the guest got the answer of a device `virtio-rng`, to which it sends one request.
#[derive(Debug)]
pub(crate) struct EntropyAnswer {
    /// `pci` or `mmio`.
    pub(crate) transport: String,
    /// The way in which the device was to interrupt: `msix`, `intx` or `poll`.
    pub(crate) interrupts: String,
    pub(crate) interrupted: bool,
    pub(crate) bytes: u64,
}

/// Waits until a device `virtio-rng` has answered.
pub(crate) fn wait_for_entropy(vm: &mut Vm) -> EntropyAnswer {
    let answer = |event: &Event| match event.clone() {
        Event::Entropy { transport, interrupts, interrupted, bytes, .. } => {
            Some(EntropyAnswer { transport, interrupts, interrupted, bytes })
        }
        _ => None,
    };
    vm.wait("answer", answer).unwrap().0
}

/// Waits until the guest has written to memory. Returns how many bytes.
pub(crate) fn wait_for_touched(vm: &mut Vm) -> Bytes {
    let touched = |event: &Event| match *event {
        Event::Touched { bytes, .. } => Some(Bytes(bytes)),
        _ => None,
    };
    vm.wait("touched memory", touched).unwrap().0
}

/// Starts a machine whose guest gives up. Returns the reason that the guest gives.
pub(crate) fn reason_for_giving_up(config: &Config) -> String {
    let mut vm = Vm::start(config).unwrap();
    match vm.wait("end", |_| None::<()>).unwrap_err() {
        Error::BailOut(reason) => reason,
        other => panic!("{other}"),
    }
}

/// Checks that a guest with two CPUs reports an overflow of the stack of either.
pub(crate) fn check_that_overflows_are_reported(config: &Config) {
    let config = Config { cpus: 2, ..config.clone() };
    for cpu in ["first", "other"] {
        let reason = reason_for_giving_up(&config.clone().with_guest_option("overflow", cpu));
        assert!(reason.contains("the stack has overflowed"), "{cpu}: {reason}");
    }
}

/// Runs `hotmem daxctl`. Returns its standard output, if it succeeds, and its standard error.
pub(crate) fn daxctl(args: &[&str]) -> (Option<serde_json::Value>, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hotmem")).arg("daxctl").args(args).output().unwrap();
    let json = output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap());
    (json, String::from_utf8(output.stderr).unwrap())
}
