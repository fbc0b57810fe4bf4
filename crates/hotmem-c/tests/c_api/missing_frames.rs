//! A plug that lacks frames for page tables, and a balloon that has them.

use crate::devices::{Device, status};
use crate::devices::{answer, pointer_to};
use crate::instance::{Heap, Instance, MIB};
use hotmem_c::*;
use std::ffi::c_void;
use std::ptr::null;

const TABLES: u64 = 40;

extern "C" fn tables_needed(_: *mut c_void, _: u64, _: u64) -> u64 {
    TABLES
}

/// A balloon whose device answers at once.
struct Balloon {
    driver: Heap,
    message: Heap,
    config: hotmem_balloon_config,
    now: u64,
}

impl Balloon {
    fn new(instance: &Instance, num_pages: u32) -> Balloon {
        let (driver, message) =
            (Heap::zeroes::<hotmem_balloon>(), Heap::zeroes::<hotmem_balloon_message>());
        let config = hotmem_balloon_config { num_pages, ..Default::default() };
        let balloon = Balloon { driver, message, config, now: 0 };
        let (driver, h) = (balloon.driver.pointer(), instance.as_ptr());
        let deflates_on_oom = 1 << 2;
        // SAFETY: `driver` points to zeroes, and `h` to an instance.
        let code =
            unsafe { hotmem_balloon_init(driver, h, &balloon.config, deflates_on_oom, null()) };
        assert_eq!(code, 0);
        balloon
    }

    fn need(&self, frames: u64) {
        // SAFETY: `driver` points to a driver.
        assert_eq!(unsafe { hotmem_balloon_need(self.driver.pointer(), frames) }, 0);
    }

    /// Steps until the driver has nothing to do.
    fn run(&mut self) {
        let (driver, message) =
            (self.driver.pointer(), self.message.pointer::<hotmem_balloon_message>());
        let mut used = None;
        loop {
            self.now += 1 << 20;
            // SAFETY: `driver` points to a driver, and `message` to a message.
            let step = unsafe {
                hotmem_balloon_step(driver, self.now, &self.config, pointer_to(&used), message)
            };
            used = None;
            match step {
                // SAFETY: the step has filled the message.
                HOTMEM_STEP_SEND => used = Some(answer(unsafe { (*message).queue })),
                HOTMEM_STEP_AGAIN | HOTMEM_STEP_SET_ACTUAL => {}
                HOTMEM_STEP_WAIT | HOTMEM_STEP_IDLE => return,
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_balloon_returns_the_frames_that_a_plug_lacks() {
    let hooks = hotmem_hooks { tables_needed: Some(tables_needed), ..Default::default() };
    let instance = Instance::boot(Some(&hooks));
    let mut balloon = Balloon::new(&instance, u32::MAX);
    balloon.run();
    assert!(instance.counts().free < TABLES);
    let virtio_mem = Heap::zeroes::<hotmem_virtio_mem>();
    let driver = virtio_mem.pointer::<hotmem_virtio_mem>();
    let mut device = Device::new(32 * MIB);
    let (h, online_type) = (instance.as_ptr(), HOTMEM_ONLINE_MOVABLE);
    // SAFETY: `driver` points to zeroes, `h` to an instance, and the memory of the device is the
    // instance's own memory.
    let init = unsafe { hotmem_virtio_mem_init(driver, h, &device.config, 0, online_type, 0) };
    assert_eq!(init, 0);
    assert_eq!(device.run(driver), HOTMEM_STEP_WAIT);
    let pending = status(driver);
    assert_eq!((pending.plugged, pending.missing_frames), (0, TABLES));
    assert_eq!(status(driver).missing_frames, 0, "each number is returned once");

    balloon.need(pending.missing_frames);
    balloon.run();
    assert!(instance.counts().free >= TABLES);
    device.config.requested_size = 30 * MIB;
    assert_eq!(device.run(driver), HOTMEM_STEP_IDLE);
    let reached = status(driver);
    assert_eq!((reached.state, reached.plugged), (HOTMEM_VIRTIO_MEM_REACHED, 30 * MIB));
    assert_eq!(reached.missing_frames, 0);
}
