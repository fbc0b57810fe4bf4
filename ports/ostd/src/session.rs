//! Runs the kernel's main loop, which carries out the host's requests. Prints events as lines of
//! JSON, which Hotmem's lab parses.

use crate::clock::now;
use crate::load::Load;
use crate::reporting::Reporting;
use crate::virtio_mem::VirtioMem;
use core::hint::spin_loop;
use hotmem::Bytes;
use hotmem_ostd_allocator::FRAMES;
use hotmem_virtio::mem::{Progress, Status};
use ostd::power::{ExitCode, poweroff};
use ostd::prelude::println;

/// The size that the host requests to signal that it has no more requests.
const END_SIZE: Bytes = Bytes::mib(2);

/// If the plugged size is a multiple of this size, the kernel frees the memory of its load after it
/// has checked the memory. Otherwise it keeps that memory in use until the memory blocks a request.
const FREED_MULTIPLE: Bytes = Bytes::mib(64);

/// Carries out the host's requests until the host requests [`END_SIZE`]. Then ends the machine.
pub fn run() {
    println!();
    let device = match VirtioMem::start().transpose() {
        Ok(device) => device,
        Err(error) => {
            println!("Bail out! the device: {}", error);
            return end(false);
        }
    };
    let mut reporting = match Reporting::start().transpose() {
        Ok(reporting) => reporting,
        Err(error) => {
            println!("Bail out! the balloon: {}", error);
            return end(false);
        }
    };
    println!(
        r#"{{"event":"boot","ms":{},"boot_memory":{},"cpus":{}}}"#,
        now().as_millis(),
        FRAMES.counts().present << 12,
        ostd::cpu::num_cpus(),
    );
    let Some(mut device) = device else { return end(true) };
    let mut load = Load::start();
    let (mut reached, mut pending_size) = (Bytes::ZERO, None);
    loop {
        let mut start = now();
        while device.requested() == reached || device.driver().status() != Status::Reached {
            if device.requested() == reached {
                start = now();
            }
            if let Progress::Ready(failure) = device.poll() {
                println!("Bail out! the device: {}", failure);
                return end(false);
            }
            if let Status::Pending(reason) = device.driver().status()
                && pending_size != Some(device.requested())
            {
                pending_size = Some(device.requested());
                load.free();
                println!(
                    r#"{{"event":"pending","target":{},"plugged":{},"why":"{}"}}"#,
                    device.requested().0,
                    device.driver().plugged().0,
                    reason,
                );
            }
            if let Some(Err(failure)) = reporting.as_mut().map(Reporting::poll) {
                println!("Bail out! the balloon: {}", failure);
                return end(false);
            }
            spin_loop();
        }
        let grown = device.requested() > reached;
        reached = device.requested();
        let counts = FRAMES.counts();
        println!(
            r#"{{"event":"resized","target":{},"plugged":{},"online":{},"free":{},"requests":{},"us":{}}}"#,
            reached.0,
            device.driver().plugged().0,
            counts.online << 12,
            counts.free << 12,
            device.driver().statistics().requests,
            (now() - start).as_micros(),
        );
        if reached == END_SIZE {
            load.end();
            return end(true);
        }
        if grown {
            load.use_memory(!reached.0.is_multiple_of(FREED_MULTIPLE.0));
        }
    }
}

/// Prints the verdict, and ends the machine. The run also fails if an invariant was violated.
fn end(passed: bool) {
    let passed = passed && hotmem::violated_invariants().count == 0;
    println!("hotmem: {}", if passed { "PASS" } else { "FAIL" });
    poweroff(if passed { ExitCode::Success } else { ExitCode::Failure });
}
