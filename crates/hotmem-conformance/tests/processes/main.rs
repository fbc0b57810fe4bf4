//! Checks that a device which ends the process, or never returns, fails its point and no other. The program
//! starts itself as a VMM's author does, with a device that the environment names.

use hotmem_conformance::model::Model;
use hotmem_conformance::runner::Suite;
use hotmem_conformance::{GuestMemory, Host, Inaccessible, MEMORY_POINTS, Registers, Unsupported};
use std::ops::Range;
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, process, thread};

/// The environment variable that names the device.
const DEVICE: &str = "HOTMEM_TEST_DEVICE";
/// The offset of a register of virtio-mmio.
const QUEUE_NOTIFY: u64 = 0x50;

/// A point that notifies the device, and one that does not.
const NOTIFIES: &str = "mem/state/unplugged";
const DOES_NOT: &str = "transport/reset-reads-zero";

/// A model that ends the process, or does not return, when it is notified.
struct Ends(Model, fn());

fn main() -> ExitCode {
    match env::var(DEVICE).as_deref() {
        Ok("aborts") => suite(|| process::abort()).main(),
        Ok("exits") => suite(|| process::exit(0)).main(),
        Ok("aborts as expected") => {
            let suite = suite(|| process::abort()).expecting("mem/state/unplugged  it aborts");
            suite.expect("the point exists").main()
        }
        Ok("hangs") => suite(hang).point_limit(Duration::from_secs(1)).main(),
        _ => {
            fails("aborts", "the device ends the process (signal: 6");
            fails("exits", "the device ends the process (exit status: 0)");
            fails("hangs", "the device has not returned within 1s");
            for device in ["aborts", "exits"] {
                let (passes, output) = run(device, DOES_NOT);
                assert!(passes && output.contains("1 passed"), "{device}: {output}");
            }
            let (passes, output) = run("aborts as expected", NOTIFIES);
            assert!(passes && output.contains("1 passed"), "{output}");
            ExitCode::SUCCESS
        }
    }
}

fn suite(end: fn()) -> Suite<impl Fn() -> Ends + Send + Sync + 'static> {
    let suite = Suite::new(MEMORY_POINTS, move || Ends(Model::memory(None), end));
    suite.each_point_in_a_process()
}

fn hang() {
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Checks that the point that notifies the device fails, for `reason`.
fn fails(device: &str, reason: &str) {
    let (passes, output) = run(device, NOTIFIES);
    assert!(!passes && output.contains(reason), "{device}: {output}");
}

/// Runs a point with a device. Returns whether it passes, and the output.
fn run(device: &str, point: &str) -> (bool, String) {
    let program = env::current_exe().expect("the program has a path");
    let mut command = Command::new(program);
    let output = command.env(DEVICE, device).args(["--exact", point]).output();
    let output = output.expect("the program runs");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Registers for Ends {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.0.read(offset, data);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if offset == QUEUE_NOTIFY {
            (self.1)();
        }
        self.0.write(offset, data);
    }

    fn run(&mut self) {
        self.0.run();
    }
}

impl GuestMemory for Ends {
    fn ram(&self) -> Range<u64> {
        self.0.ram()
    }

    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        self.0.read_memory(addr, data)
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        self.0.write_memory(addr, data)
    }
}

impl Host for Ends {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        self.0.set_requested_size(bytes)
    }
}
