//! What the kernel says: an event in a line of JSON, as Hotmem's lab reads them.

use crate::virtio_mem::VirtioMem;
use axalloc::FRAMES;
use axhal::time::monotonic_time;
use axstd::println;
use core::fmt::Display;
use core::time::Duration;

/// The kernel runs.
pub fn boot() {
    let (ms, bytes) = (monotonic_time().as_millis(), FRAMES.counts().present << 12);
    println!(r#"{{"event":"boot","ms":{ms},"boot_memory":{bytes},"cpus":{}}}"#, axhal::cpu_num());
}

/// The device has as much plugged as the host asks for, since this time.
pub fn resized(device: &VirtioMem, began: Duration) {
    let us = (monotonic_time() - began).as_micros();
    let (counts, driver) = (FRAMES.counts(), device.driver());
    println!(
        r#"{{"event":"resized","target":{},"plugged":{},"online":{},"free":{},"requests":{},"us":{us}}}"#,
        device.requested().0,
        driver.plugged().0,
        counts.online << 12,
        counts.free << 12,
        driver.statistics().requests,
    );
}

/// The device does not have as much plugged.
pub fn pending(device: &VirtioMem, why: impl Display) {
    let (target, plugged) = (device.requested().0, device.driver().plugged().0);
    println!(r#"{{"event":"pending","target":{target},"plugged":{plugged},"why":"{why}"}}"#);
}

/// So much was allocated and written to, since this time.
pub fn touched(bytes: usize, began: Duration) {
    let us = (monotonic_time() - began).as_micros();
    println!(r#"{{"event":"touched","bytes":{bytes},"us":{us}}}"#);
}

/// So much that was written to was found as it was, and freed.
pub fn freed(bytes: usize, began: Duration) {
    let us = (monotonic_time() - began).as_micros();
    println!(r#"{{"event":"freed","bytes":{bytes},"us":{us}}}"#);
}
