use crate::instance::{BOOT_END, Heap, Instance, MEMORY_END, MIB, request};
use hotmem_c::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

#[test]
fn null_pointers_are_refused() {
    let instance = Instance::boot(None);
    let (h, none) = (instance.as_ptr(), null_mut::<hotmem>());
    let (virtio_mem, balloon) =
        (Heap::zeroes::<hotmem_virtio_mem>(), Heap::zeroes::<hotmem_balloon>());
    let (d, b) = (virtio_mem.pointer::<hotmem_virtio_mem>(), balloon.pointer::<hotmem_balloon>());
    let (mut paddr, mut same_state_len, fault) = (0, 0, HOTMEM_EFAULT);
    // SAFETY: all pointers are null, or point to objects of the types that the functions name.
    unsafe {
        assert_eq!(hotmem_configure(none, null()), fault);
        assert_eq!(hotmem_configure(Instance::new().as_ptr(), null()), fault);
        assert_eq!(hotmem_boot_add(none, 0, BOOT_END, HOTMEM_RAM), fault);
        assert_eq!(hotmem_boot(none, null_mut(), 0), fault);
        assert_eq!(hotmem_alloc(none, &request(1), &mut paddr), fault);
        assert_eq!(hotmem_alloc(h, &request(1), null_mut()), fault);
        assert_eq!(hotmem_free(none, 0, 1), fault);
        assert_eq!(hotmem_alloc_frame(none), fault.into());
        assert_eq!(hotmem_free_frame(none, 0), fault);
        assert_eq!(hotmem_get_counts(none, null_mut()), fault);
        assert_eq!(hotmem_get_counts(h, null_mut()), fault);
        assert_eq!(hotmem_announce(none, BOOT_END, 2 * MIB, 0), fault);
        assert_eq!(hotmem_withdraw(none, BOOT_END, 2 * MIB), fault);
        assert_eq!(hotmem_add(none, BOOT_END, 2 * MIB), fault);
        assert_eq!(hotmem_online(none, BOOT_END, 2 * MIB, 0), fault);
        assert_eq!(hotmem_remove(none, BOOT_END, 2 * MIB, null_mut()), fault);
        assert_eq!(hotmem_state(none, BOOT_END, 2 * MIB, &mut same_state_len), fault);
        assert_eq!(hotmem_state(h, BOOT_END, 2 * MIB, null_mut()), fault);
        assert_eq!(hotmem_take_table(null_mut()), HOTMEM_NONE);
        hotmem_free_table(null_mut(), 0);

        let config = hotmem_virtio_mem_config::default();
        let mut request = hotmem_virtio_mem_request::default();
        assert_eq!(hotmem_virtio_mem_init(null_mut(), h, &config, 0, 0, 0), fault);
        assert_eq!(hotmem_virtio_mem_init(d, none, &config, 0, 0, 0), fault);
        assert_eq!(hotmem_virtio_mem_init(d, h, null(), 0, 0, 0), fault);
        assert_eq!(hotmem_virtio_mem_step(null_mut(), 0, &config, null(), 0, &mut request), fault);
        assert_eq!(hotmem_virtio_mem_withdraw(null_mut()), fault);
        assert_eq!(hotmem_virtio_mem_withdraw(d), HOTMEM_EINVAL, "it is no driver");
        assert_eq!(hotmem_virtio_mem_get_status(null_mut(), null_mut()), fault);
        assert_eq!(hotmem_virtio_mem_explain(null_mut(), null_mut(), 0), fault);

        let config = hotmem_balloon_config::default();
        assert_eq!(hotmem_balloon_init(null_mut(), h, &config, 0, null()), fault);
        assert_eq!(hotmem_balloon_init(b, none, &config, 0, null()), fault);
        assert_eq!(hotmem_balloon_init(b, h, null(), 0, null()), fault);
        assert_eq!(hotmem_balloon_step(null_mut(), 0, &config, null(), null_mut()), fault);
        assert_eq!(hotmem_balloon_reset(null_mut(), &config), fault);
        assert_eq!(hotmem_balloon_migrate(null_mut(), 0, 4096), fault);
        assert_eq!(hotmem_balloon_need(null_mut(), 1), fault);
        assert_eq!(hotmem_balloon_get_status(null_mut(), null_mut()), fault);
        assert_eq!(hotmem_balloon_init(b, h, &config, 0, null()), 0);
        assert_eq!(hotmem_balloon_step(b, 0, &config, null(), null_mut()), fault);
        assert_eq!(hotmem_balloon_step(b, 0, null(), null(), null_mut()), fault);
        assert_eq!(hotmem_balloon_reset(b, null()), fault);
        assert_eq!(hotmem_balloon_get_status(b, null_mut()), fault);
    }
}

#[test]
fn a_struct_that_was_not_initialised_is_refused() {
    let mut paddr = 0;
    // SAFETY: the memory has the size of a `struct hotmem`, and the calls must refuse it.
    unsafe {
        let fresh = Instance::new();
        assert_eq!(hotmem_alloc(fresh.as_ptr(), null(), &mut paddr), HOTMEM_EINVAL);
        assert_eq!(hotmem_alloc_frame(fresh.as_ptr()), HOTMEM_EINVAL.into());
        assert_eq!(hotmem_announce(fresh.as_ptr(), BOOT_END, 2 * MIB, 0), HOTMEM_EINVAL);
        assert_eq!(
            hotmem_boot(fresh.as_ptr(), fresh.memory.pointer(), 0),
            HOTMEM_ENOMEM,
            "no RAM was added"
        );
        let (virtio_mem, balloon) =
            (Heap::zeroes::<hotmem_virtio_mem>(), Heap::zeroes::<hotmem_balloon>());
        let config = hotmem_virtio_mem_config::default();
        assert_eq!(
            hotmem_virtio_mem_init(virtio_mem.pointer(), fresh.as_ptr(), &config, 0, 0, 0),
            HOTMEM_EINVAL
        );
        assert_eq!(hotmem_virtio_mem_get_status(virtio_mem.pointer(), null_mut()), HOTMEM_EINVAL);
        assert_eq!(hotmem_balloon_need(balloon.pointer(), 1), HOTMEM_EINVAL);

        let garbage = Instance::new();
        garbage.as_ptr().cast::<u8>().write_bytes(0x5a, HOTMEM_SIZE);
        assert_eq!(hotmem_boot_add(garbage.as_ptr(), 0, BOOT_END, HOTMEM_RAM), HOTMEM_EINVAL);
        assert_eq!(hotmem_free(garbage.as_ptr(), 0, 1), HOTMEM_EINVAL);
        assert_eq!(hotmem_free_frame(garbage.as_ptr(), 0), HOTMEM_EINVAL);

        let booted = Instance::boot(None);
        let copy = Instance::new();
        copy.as_ptr().copy_from_nonoverlapping(booted.as_ptr(), 1);
        assert_eq!(
            hotmem_alloc(copy.as_ptr(), null(), &mut paddr),
            HOTMEM_EINVAL,
            "a copy of an instance is refused"
        );
        let inside = booted.as_ptr().cast::<u8>().wrapping_add(8).cast();
        assert_eq!(
            hotmem_alloc(inside, null(), &mut paddr),
            HOTMEM_EINVAL,
            "the pointer is not aligned"
        );
        assert_eq!(hotmem_alloc_frame(inside), HOTMEM_EINVAL.into(), "the pointer is not aligned");
        assert_eq!(hotmem_free_frame(inside, 0), HOTMEM_EINVAL, "the pointer is not aligned");
    }
}

/// A copy of an instance is refused because its seal is wrong. The seal of an instance is different if
/// the kernel has a function for CPU numbers, so both kinds are tested.
#[test]
fn copies_of_instances_with_and_without_cpu_numbers_are_refused() {
    unsafe extern "C" fn cpu(_: *mut c_void) -> u32 {
        1
    }
    for hooks in [hotmem_hooks::default(), hotmem_hooks { cpu: Some(cpu), ..Default::default() }] {
        let booted = Instance::boot(Some(&hooks));
        let copy = Instance::new();
        // SAFETY: both are a `struct hotmem`, and the calls must refuse the copy.
        unsafe {
            copy.as_ptr().copy_from_nonoverlapping(booted.as_ptr(), 1);
            assert_eq!(hotmem_alloc_frame(copy.as_ptr()), HOTMEM_EINVAL.into());
            assert_eq!(hotmem_free_frame(copy.as_ptr(), 0), HOTMEM_EINVAL);
            let frame = hotmem_alloc_frame(booted.as_ptr()).cast_unsigned();
            assert_eq!(hotmem_free_frame(booted.as_ptr(), frame + 1), HOTMEM_EINVAL);
            assert_eq!(hotmem_free_frame(booted.as_ptr(), 1 << 52), HOTMEM_ERANGE);
            assert_eq!(hotmem_free_frame(booted.as_ptr(), frame), 0);
            assert_eq!(hotmem_boot(booted.as_ptr(), null_mut(), 0), HOTMEM_EALREADY);
        }
    }
}

#[test]
fn a_second_boot_is_refused() {
    let instance = Instance::boot(None);
    let config = hotmem_config { hooks: null(), mappable_end: 0, low_end: 0, cpus: 0 };
    // SAFETY: `instance.as_ptr()` points to an instance.
    unsafe {
        assert_eq!(hotmem_boot(instance.as_ptr(), instance.memory.pointer(), 0), HOTMEM_EALREADY);
        assert_eq!(
            hotmem_boot_add(instance.as_ptr(), BOOT_END, BOOT_END, HOTMEM_RAM),
            HOTMEM_EALREADY
        );
        assert_eq!(hotmem_configure(instance.as_ptr(), &config), HOTMEM_EALREADY);
    }
    assert!(instance.alloc(&request(1)).is_ok());
}

#[test]
fn invalid_boot_memory_is_refused_and_boot_can_be_tried_again() {
    let instance = Instance::new();
    let h = instance.as_ptr();
    let boot = || {
        // SAFETY: `h` points to an instance that has not booted, and `memory` is its own memory.
        unsafe { hotmem_boot(h, instance.memory.pointer(), 0) }
    };
    // SAFETY: `h` points to an instance, and each range that is added is its own memory or is
    // refused.
    unsafe {
        assert_eq!(hotmem_boot_add(h, u64::MAX, 2, HOTMEM_RAM), HOTMEM_ERANGE);
        assert_eq!(hotmem_boot_add(h, 0, BOOT_END, 3), HOTMEM_EINVAL);
        assert_eq!(hotmem_boot_add(h, 0, 0, HOTMEM_RAM), 0, "an empty range is accepted");
        assert_eq!(boot(), HOTMEM_ENOMEM);
        let config = hotmem_config { hooks: null(), mappable_end: u64::MAX, low_end: 0, cpus: 0 };
        assert_eq!(hotmem_configure(h, &config), HOTMEM_ERANGE);
        let config = hotmem_config { mappable_end: 4 * MIB, ..config };
        assert_eq!(hotmem_configure(h, &config), 0);
        assert_eq!(hotmem_boot_add(h, 0, BOOT_END, HOTMEM_RAM), 0);
        assert_eq!(
            boot(),
            HOTMEM_ERANGE,
            "RAM lies beyond the end of the memory that can be mapped"
        );
        let config = hotmem_config { mappable_end: MEMORY_END, low_end: 4 * MIB, ..config };
        assert_eq!(hotmem_configure(h, &config), 0);
        let odd = instance.memory.pointer::<u8>().wrapping_add(1).cast();
        assert_eq!(hotmem_boot(h, odd, 0), HOTMEM_EINVAL);
        assert_eq!(hotmem_boot(h, instance.memory.pointer(), u64::MAX), HOTMEM_ERANGE);
        assert_eq!(boot(), 0);
    }
    assert_eq!(instance.counts().online, BOOT_END / 4096);
}

#[test]
fn too_many_boot_ranges_are_refused_and_adjacent_ranges_are_merged() {
    let instance = Instance::new();
    // SAFETY: `as_ptr()` points to an instance that never boots, so it uses no memory of the ranges.
    unsafe {
        for number in 0..HOTMEM_BOOT_RANGES as u64 {
            assert_eq!(hotmem_boot_add(instance.as_ptr(), number * 8192, 4096, HOTMEM_RAM), 0);
        }
        assert_eq!(hotmem_boot_add(instance.as_ptr(), MIB, 4096, HOTMEM_RAM), HOTMEM_ENOSPC);
        assert_eq!(
            hotmem_boot_add(instance.as_ptr(), 4096, 4096, HOTMEM_RAM),
            0,
            "the range lies between two others and is merged with them"
        );
        assert_eq!(hotmem_boot_add(instance.as_ptr(), MIB, 4096, HOTMEM_RAM), 0);
    }
}

#[test]
fn invalid_requests_and_frees_are_refused() {
    let instance = Instance::boot(None);
    let refused_requests = [
        (request(0), HOTMEM_EINVAL),
        (request(u64::MAX), HOTMEM_EINVAL),
        (hotmem_request { align: 3, ..request(1) }, HOTMEM_EINVAL),
        (hotmem_request { align: 1 << 63, ..request(1) }, HOTMEM_EINVAL),
        (hotmem_request { min: u64::MAX, ..request(1) }, HOTMEM_ERANGE),
        (hotmem_request { max: u64::MAX, ..request(1) }, HOTMEM_ERANGE),
        (hotmem_request { min: 2 * MIB, max: MIB, ..request(1) }, HOTMEM_ENOMEM),
        (hotmem_request { at: 4097, flags: HOTMEM_AT, ..request(1) }, HOTMEM_EINVAL),
        (hotmem_request { at: !0 << 12, flags: HOTMEM_AT, ..request(1) }, HOTMEM_ERANGE),
        (hotmem_request { at: MEMORY_END, flags: HOTMEM_AT, ..request(1) }, HOTMEM_EBUSY),
        (hotmem_request { flags: 32, ..request(1) }, HOTMEM_EINVAL),
        (hotmem_request { flags: HOTMEM_NEAR | HOTMEM_ONLY, ..request(1) }, HOTMEM_EINVAL),
    ];
    for (request, code) in refused_requests {
        assert_eq!(instance.alloc(&request), Err(code), "{request:?}");
    }
    assert_eq!(instance.free(1, 1), HOTMEM_EINVAL);
    assert_eq!(instance.free(BOOT_END - 4096, 0), HOTMEM_EINVAL);
    assert_eq!(instance.free(!0 << 12, 1), HOTMEM_ERANGE);
    assert_eq!(instance.free(4096, u64::MAX), HOTMEM_ERANGE);
    assert_eq!(instance.free(BOOT_END, 1), HOTMEM_ENXIO);
    assert_eq!(instance.free(BOOT_END - 4096, 1), HOTMEM_ENOENT);
}
