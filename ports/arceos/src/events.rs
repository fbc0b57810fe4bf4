//! Prints events, each as a line of JSON, which Hotmem's lab parses.

use crate::virtio_mem::VirtioMem;
use axalloc::FRAMES;
use axhal::time::monotonic_time;
use axstd::println;
use core::fmt::Display;
use core::time::Duration;

/// Reports that the kernel has booted.
pub fn boot() {
    let (ms, bytes) = (monotonic_time().as_millis(), FRAMES.counts().present << 12);
    println!(r#"{{"event":"boot","ms":{ms},"boot_memory":{bytes},"cpus":{}}}"#, axhal::cpu_num());
}

/// Reports that the device has reached the requested size. `start` is the time when the kernel read
/// that size first.
pub fn resized(device: &VirtioMem, start: Duration) {
    let us = (monotonic_time() - start).as_micros();
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

/// Reports that the device cannot reach the requested size at the moment.
pub fn pending(device: &VirtioMem, reason: impl Display) {
    let (target, plugged) = (device.requested().0, device.driver().plugged().0);
    println!(r#"{{"event":"pending","target":{target},"plugged":{plugged},"why":"{reason}"}}"#);
}

/// Reports that `bytes` were allocated and written to since `start`.
pub fn touched(bytes: usize, start: Duration) {
    let us = (monotonic_time() - start).as_micros();
    println!(r#"{{"event":"touched","bytes":{bytes},"us":{us}}}"#);
}

/// Reports that `bytes` of written memory were checked and freed since `start`.
pub fn freed(bytes: usize, start: Duration) {
    let us = (monotonic_time() - start).as_micros();
    println!(r#"{{"event":"freed","bytes":{bytes},"us":{us}}}"#);
}
