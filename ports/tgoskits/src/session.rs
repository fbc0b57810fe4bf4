//! Carries out the requests of the virtio-mem device, and prints events, each as a line of JSON,
//! which Hotmem's lab parses.

use crate::{fill, pci};
use ax_alloc::{Cpus, FRAMES, HOTPLUG, heap};
use ax_hal::time::monotonic_time;
use ax_std::println;
use core::hint::spin_loop;
use core::time::Duration;
use hotmem::{Budget, Bytes, OnlineType};
use hotmem_virtio::mem::{HotplugDevice, HotplugMemory, Pending, Progress, Status};
use virtio_drivers::transport::DeviceType;

type VirtioMem = HotplugDevice<'static, pci::Transport, Cpus>;

/// The size that the host requests to signal that it has no more requests.
const END_SIZE: Bytes = Bytes::mib(2);

/// Carries out the host's requests until the host requests [`END_SIZE`]. Returns whether the device was
/// found, and worked.
pub fn run() -> bool {
    let Some(transport) = pci::find(DeviceType::Memory) else {
        println!("Bail out! there is no virtio-mem device");
        return false;
    };
    let Some(queue) = pci::shared_memory(VirtioMem::MEMORY_SIZE) else { return false };
    let memory = HotplugMemory::new(OnlineType::Kernel, Budget { pageblocks: 64 })
        .with_max_addition(Bytes::mib(32));
    let mut device = match VirtioMem::new(transport, queue, memory) {
        Ok(device) => device,
        Err(error) => {
            println!("Bail out! the device: {error}");
            return false;
        }
    };
    report_boot();
    let mut reached = Bytes::ZERO;
    while reached != END_SIZE {
        let Some(size) = reach_next_size(&mut device, reached) else { return false };
        if size > reached && size != END_SIZE {
            println!(r#"{{"event":"verified","bytes":{}}}"#, fill::run());
        }
        reached = size;
    }
    true
}

fn report_boot() {
    let (ms, bytes) = (monotonic_time().as_millis(), FRAMES.counts().present << 12);
    // The last line that ArceOS prints ends with a change of colour and without a line feed.
    println!();
    println!(r#"{{"event":"boot","ms":{ms},"boot_memory":{bytes},"cpus":{}}}"#, ax_hal::cpu_num());
}

/// Waits until the host requests another size than `reached`, and reaches that size. Returns `None`
/// if the device has failed.
fn reach_next_size(device: &mut VirtioMem, reached: Bytes) -> Option<Bytes> {
    let (mut start, mut reported) = (monotonic_time(), None::<Pending>);
    loop {
        if device.requested() == reached {
            start = monotonic_time();
        }
        if let Progress::Ready(failure) = poll(device) {
            println!("Bail out! the device: {failure}");
            return None;
        }
        match device.driver().status() {
            Status::Reached if device.requested() != reached => {
                report_resized(device, start);
                return Some(device.requested());
            }
            Status::Pending(reason) if reported != Some(reason) => {
                reported = Some(reason);
                let (target, plugged) = (device.requested().0, device.driver().plugged().0);
                println!(
                    r#"{{"event":"pending","target":{target},"plugged":{plugged},"why":"{reason}"}}"#
                );
            }
            _ => spin_loop(),
        }
    }
}

/// Carries out the host's request until the driver waits for the next answer of the device.
fn poll(device: &mut VirtioMem) -> Progress {
    device.device().ack_interrupt();
    let mut hotplug = HOTPLUG.lock();
    let hotplug = hotplug.as_mut().expect("allocating the queue has started the engine");
    device.poll(monotonic_time(), 2, hotplug, &mut heap()).expect("the kernel has one instance")
}

/// Reports that the device has reached the requested size. `start` is the time when the kernel read
/// that size first.
fn report_resized(device: &VirtioMem, start: Duration) {
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
