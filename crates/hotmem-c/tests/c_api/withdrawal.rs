//! Withdraws a virtio-mem device that is gone, while a part of its memory is in use.

use crate::devices::{Device, explain, status};
use crate::instance::{BOOT_END, Heap, Instance, MIB, request};
use hotmem_c::*;

#[test]
fn memory_in_use_of_a_device_that_is_gone_remains_until_it_is_free() {
    let instance = Instance::boot(None);
    let virtio_mem = Heap::zeroes::<hotmem_virtio_mem>();
    let driver = virtio_mem.pointer::<hotmem_virtio_mem>();
    let mut device = Device::new(16 * MIB);
    let (h, online_type) = (instance.as_ptr(), HOTMEM_ONLINE_MOVABLE);
    // SAFETY: `driver` points to zeroes, `h` to an instance, and the memory of the device is the
    // instance's own memory.
    let init = unsafe { hotmem_virtio_mem_init(driver, h, &device.config, 0, online_type, 0) };
    assert_eq!(init, 0);
    // SAFETY: `driver` points to a driver, and the device has no request of it.
    let withdraw = || unsafe { hotmem_virtio_mem_withdraw(driver) };
    let withdraw_all =
        || std::iter::repeat_with(withdraw).find(|&code| code != HOTMEM_STEP_AGAIN).unwrap();
    for _ in 0..2 {
        assert_eq!(device.run(driver), HOTMEM_STEP_IDLE);
        let flags = HOTMEM_MOVABLE;
        let page = instance.alloc(&hotmem_request { flags, ..request(1) }).unwrap();
        assert_eq!(withdraw_all(), HOTMEM_EAGAIN);
        let left = status(driver);
        assert_eq!((left.state, left.plugged), (HOTMEM_VIRTIO_MEM_WITHDRAWN, 2 * MIB));
        assert_ne!(explain(driver, 128), "");
        let counts = instance.counts();
        assert_eq!(counts.present - BOOT_END / 4096, 512);
        assert_eq!((counts.online, counts.isolated), (counts.present, 0), "the rest is usable");

        assert_eq!(instance.free(page, 1), 0);
        assert_eq!(withdraw_all(), HOTMEM_STEP_IDLE);
        let left = status(driver);
        assert_eq!((left.state, left.plugged), (HOTMEM_VIRTIO_MEM_WITHDRAWN, 0));
        assert_eq!(explain(driver, 128), "");
        assert_eq!(instance.state(BOOT_END, 16 * MIB), (HOTMEM_STATE_UNKNOWN, 16 * MIB));
        assert_eq!(withdraw_all(), HOTMEM_STEP_IDLE, "it is gone already");

        // Another device comes, with another region.
        device = Device::new(16 * MIB);
        device.config.region_size = 32 * MIB;
        device.config.usable_region_size = 32 * MIB;
        // SAFETY: `driver` points to a driver.
        assert_eq!(unsafe { hotmem_virtio_mem_reset(driver, &raw const device.config) }, 0);
    }
}
