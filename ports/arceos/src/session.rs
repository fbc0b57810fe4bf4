//! What the kernel does, and what it says of it: an event in a line of JSON, as Hotmem's lab reads
//! them.

use crate::load::Load;
use crate::reporting::Reporting;
use crate::virtio_mem::VirtioMem;
use alloc::boxed::Box;
use axalloc::FRAMES;
use axhal::time::monotonic_time;
use axstd::println;
use core::hint::{black_box, spin_loop};
use hotmem::Bytes;
use hotmem_virtio::mem::{Progress, Status};

/// The host's sign that it has no more requests: it asks for this.
const END: Bytes = Bytes::mib(2);

/// Given a size that is no multiple of this, the kernel keeps all memory in use until it stands in
/// the way of a request.
const KEPT: Bytes = Bytes::mib(64);

/// Follows the host's requests.
pub fn run() {
    // ArceOS's own last line ends with a change of colour.
    println!();
    // The first allocation hands the boot memory over.
    black_box(Box::new(0));
    let device = VirtioMem::start();
    let mut reporting = Reporting::start();
    let ms = monotonic_time().as_millis();
    let bytes = FRAMES.counts().present << 12;
    println!(r#"{{"event":"boot","ms":{ms},"boot_memory":{bytes},"cpus":{}}}"#, axhal::cpu_num());
    let Some(mut device) = device else { return end(true) };
    let mut load = Load::start();
    let mut reached = Bytes::ZERO;
    loop {
        let mut began = monotonic_time();
        while device.requested() == reached || device.driver().status() != Status::Reached {
            if device.requested() == reached {
                began = monotonic_time();
            }
            if let Progress::Failed(failure) = device.poll() {
                println!("Bail out! the device: {failure}");
                return end(false);
            }
            if let Status::Pending(why) = device.driver().status()
                && load.free()
            {
                let (target, plugged) = (device.requested().0, device.driver().plugged().0);
                println!(
                    r#"{{"event":"pending","target":{target},"plugged":{plugged},"why":"{why}"}}"#
                );
            }
            reporting.iter_mut().for_each(Reporting::poll);
            spin_loop();
        }
        let us = (monotonic_time() - began).as_micros();
        let grown = device.requested() > reached;
        reached = device.requested();
        let (counts, plugged) = (FRAMES.counts(), device.driver().plugged());
        println!(
            r#"{{"event":"resized","target":{},"plugged":{},"online":{},"free":{},"requests":{},"us":{us}}}"#,
            reached.0,
            plugged.0,
            counts.online << 12,
            counts.free << 12,
            device.driver().statistics().requests,
        );
        if reached == END {
            load.end();
            return end(true);
        }
        if grown {
            load.use_memory(!reached.0.is_multiple_of(KEPT.0));
        }
    }
}

/// Says whether all is well, and ends the machine.
fn end(well: bool) {
    println!("hotmem: {}", if well { "PASS" } else { "FAIL" });
    let code = if well { 0x10_u32 } else { 0x11 };
    // SAFETY: QEMU's isa-debug-exit ends the machine; where there is none, this does nothing.
    unsafe { core::arch::asm!("out dx, eax", in("dx") 0xf4_u16, in("eax") code) };
}
