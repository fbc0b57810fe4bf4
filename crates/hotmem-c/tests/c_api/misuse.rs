use crate::machine::{BOOT_END, Heap, MEMORY_END, MIB, Machine, want};
use hotmem_c::*;
use std::ptr::{null, null_mut};

#[test]
fn null_pointers_are_refused() {
    let machine = Machine::boot(None);
    let (h, none) = (machine.as_ptr(), null_mut::<hotmem>());
    let (vmem, balloon) = (Heap::zeroes::<hotmem_vmem>(), Heap::zeroes::<hotmem_balloon>());
    let (d, b) = (vmem.pointer::<hotmem_vmem>(), balloon.pointer::<hotmem_balloon>());
    let (mut paddr, mut same, fault) = (0, 0, HOTMEM_EFAULT);
    // SAFETY: all pointers are null, or point to objects of the types that the functions name.
    unsafe {
        assert_eq!(hotmem_configure(none, null()), fault);
        assert_eq!(hotmem_configure(Machine::fresh().as_ptr(), null()), fault);
        assert_eq!(hotmem_boot_add(none, 0, BOOT_END, HOTMEM_RAM), fault);
        assert_eq!(hotmem_boot(none, null_mut(), 0), fault);
        assert_eq!(hotmem_alloc(none, &want(1), &mut paddr), fault);
        assert_eq!(hotmem_alloc(h, &want(1), null_mut()), fault);
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
        assert_eq!(hotmem_state(none, BOOT_END, 2 * MIB, &mut same), fault);
        assert_eq!(hotmem_state(h, BOOT_END, 2 * MIB, null_mut()), fault);
        assert_eq!(hotmem_take_table(null_mut()), HOTMEM_NONE);
        hotmem_free_table(null_mut(), 0);

        let config = hotmem_vmem_config::default();
        let mut request = hotmem_vmem_request::default();
        assert_eq!(hotmem_vmem_init(null_mut(), h, &config, 0, 0, 0), fault);
        assert_eq!(hotmem_vmem_init(d, none, &config, 0, 0, 0), fault);
        assert_eq!(hotmem_vmem_init(d, h, null(), 0, 0, 0), fault);
        assert_eq!(hotmem_vmem_step(null_mut(), 0, &config, null(), 0, &mut request), fault);
        assert_eq!(hotmem_vmem_get_status(null_mut(), null_mut()), fault);
        assert_eq!(hotmem_vmem_explain(null_mut(), null_mut(), 0), fault);

        let config = hotmem_balloon_config::default();
        assert_eq!(hotmem_balloon_init(null_mut(), h, &config, 0, null()), fault);
        assert_eq!(hotmem_balloon_init(b, none, &config, 0, null()), fault);
        assert_eq!(hotmem_balloon_init(b, h, null(), 0, null()), fault);
        assert_eq!(hotmem_balloon_step(null_mut(), 0, &config, -1, null_mut()), fault);
        assert_eq!(hotmem_balloon_reset(null_mut(), &config), fault);
        assert_eq!(hotmem_balloon_migrate(null_mut(), 0, 4096), fault);
        assert_eq!(hotmem_balloon_need(null_mut(), 1), fault);
        assert_eq!(hotmem_balloon_get_status(null_mut(), null_mut()), fault);
        assert_eq!(hotmem_balloon_init(b, h, &config, 0, null()), 0);
        assert_eq!(hotmem_balloon_step(b, 0, &config, -1, null_mut()), fault);
        assert_eq!(hotmem_balloon_step(b, 0, null(), -1, null_mut()), fault);
        assert_eq!(hotmem_balloon_reset(b, null()), fault);
        assert_eq!(hotmem_balloon_get_status(b, null_mut()), fault);
    }
}

#[test]
fn a_struct_that_was_not_set_up_is_refused() {
    let mut paddr = 0;
    // SAFETY: the memory has the size of a `struct hotmem`, and the calls must refuse it.
    unsafe {
        let fresh = Machine::fresh();
        assert_eq!(hotmem_alloc(fresh.as_ptr(), null(), &mut paddr), HOTMEM_EINVAL);
        assert_eq!(hotmem_alloc_frame(fresh.as_ptr()), HOTMEM_EINVAL.into());
        assert_eq!(hotmem_announce(fresh.as_ptr(), BOOT_END, 2 * MIB, 0), HOTMEM_EINVAL);
        assert_eq!(
            hotmem_boot(fresh.as_ptr(), fresh.memory.pointer(), 0),
            HOTMEM_ENOMEM,
            "no RAM was added"
        );
        let (vmem, balloon) = (Heap::zeroes::<hotmem_vmem>(), Heap::zeroes::<hotmem_balloon>());
        let config = hotmem_vmem_config::default();
        assert_eq!(
            hotmem_vmem_init(vmem.pointer(), fresh.as_ptr(), &config, 0, 0, 0),
            HOTMEM_EINVAL
        );
        assert_eq!(hotmem_vmem_get_status(vmem.pointer(), null_mut()), HOTMEM_EINVAL);
        assert_eq!(hotmem_balloon_need(balloon.pointer(), 1), HOTMEM_EINVAL);

        let garbage = Machine::fresh();
        garbage.as_ptr().cast::<u8>().write_bytes(0x5a, HOTMEM_SIZE);
        assert_eq!(hotmem_boot_add(garbage.as_ptr(), 0, BOOT_END, HOTMEM_RAM), HOTMEM_EINVAL);
        assert_eq!(hotmem_free(garbage.as_ptr(), 0, 1), HOTMEM_EINVAL);
        assert_eq!(hotmem_free_frame(garbage.as_ptr(), 0), HOTMEM_EINVAL);

        let booted = Machine::boot(None);
        let copy = Machine::fresh();
        copy.as_ptr().copy_from_nonoverlapping(booted.as_ptr(), 1);
        assert_eq!(
            hotmem_alloc(copy.as_ptr(), null(), &mut paddr),
            HOTMEM_EINVAL,
            "a copy of a machine is refused"
        );
        let inside = booted.as_ptr().cast::<u8>().wrapping_add(8).cast();
        assert_eq!(
            hotmem_alloc(inside, null(), &mut paddr),
            HOTMEM_EINVAL,
            "the pointer is not aligned"
        );
        assert_eq!(hotmem_alloc_frame(inside), HOTMEM_EINVAL.into(), "the pointer is not aligned");
    }
}

#[test]
fn a_machine_boots_once() {
    let machine = Machine::boot(None);
    let config = hotmem_config { hooks: null(), reach: 0, low_end: 0, cpus: 0 };
    // SAFETY: `machine.as_ptr()` points to a machine.
    unsafe {
        assert_eq!(hotmem_boot(machine.as_ptr(), machine.memory.pointer(), 0), HOTMEM_EALREADY);
        assert_eq!(
            hotmem_boot_add(machine.as_ptr(), BOOT_END, BOOT_END, HOTMEM_RAM),
            HOTMEM_EALREADY
        );
        assert_eq!(hotmem_configure(machine.as_ptr(), &config), HOTMEM_EALREADY);
    }
    assert!(machine.alloc(&want(1)).is_ok());
}

#[test]
fn impossible_boot_memory_is_refused_and_boot_can_be_tried_again() {
    let machine = Machine::fresh();
    let h = machine.as_ptr();
    let boot = || {
        // SAFETY: `h` points to a machine that has not booted, and `memory` is its own memory.
        unsafe { hotmem_boot(h, machine.memory.pointer(), 0) }
    };
    // SAFETY: `h` points to a machine, and each range that is added is its own memory or is
    // refused.
    unsafe {
        assert_eq!(hotmem_boot_add(h, u64::MAX, 2, HOTMEM_RAM), HOTMEM_ERANGE);
        assert_eq!(hotmem_boot_add(h, 0, BOOT_END, 3), HOTMEM_EINVAL);
        assert_eq!(hotmem_boot_add(h, 0, 0, HOTMEM_RAM), 0, "an empty range is ignored");
        assert_eq!(boot(), HOTMEM_ENOMEM);
        let config = hotmem_config { hooks: null(), reach: u64::MAX, low_end: 0, cpus: 0 };
        assert_eq!(hotmem_configure(h, &config), HOTMEM_ERANGE);
        let config = hotmem_config { reach: 4 * MIB, ..config };
        assert_eq!(hotmem_configure(h, &config), 0);
        assert_eq!(hotmem_boot_add(h, 0, BOOT_END, HOTMEM_RAM), 0);
        assert_eq!(
            boot(),
            HOTMEM_ERANGE,
            "RAM lies beyond the end of the memory that can be mapped"
        );
        let config = hotmem_config { reach: MEMORY_END, low_end: 4 * MIB, ..config };
        assert_eq!(hotmem_configure(h, &config), 0);
        let odd = machine.memory.pointer::<u8>().wrapping_add(1).cast();
        assert_eq!(hotmem_boot(h, odd, 0), HOTMEM_EINVAL);
        assert_eq!(hotmem_boot(h, machine.memory.pointer(), u64::MAX), HOTMEM_ERANGE);
        assert_eq!(boot(), 0);
    }
    assert_eq!(machine.counts().online, BOOT_END / 4096);
}

#[test]
fn too_many_separate_boot_ranges_are_refused_and_adjacent_ones_are_joined() {
    let machine = Machine::fresh();
    // SAFETY: `as_ptr()` points to a machine that never boots, so it uses no memory of the ranges.
    unsafe {
        for piece in 0..HOTMEM_BOOT_RANGES as u64 {
            assert_eq!(hotmem_boot_add(machine.as_ptr(), piece * 8192, 4096, HOTMEM_RAM), 0);
        }
        assert_eq!(hotmem_boot_add(machine.as_ptr(), MIB, 4096, HOTMEM_RAM), HOTMEM_ENOSPC);
        assert_eq!(
            hotmem_boot_add(machine.as_ptr(), 4096, 4096, HOTMEM_RAM),
            0,
            "the range joins two others"
        );
        assert_eq!(hotmem_boot_add(machine.as_ptr(), MIB, 4096, HOTMEM_RAM), 0);
    }
}

#[test]
fn impossible_requests_and_frees_are_refused() {
    let machine = Machine::boot(None);
    let wrong = [
        (want(0), HOTMEM_EINVAL),
        (want(u64::MAX), HOTMEM_EINVAL),
        (hotmem_request { align: 3, ..want(1) }, HOTMEM_EINVAL),
        (hotmem_request { align: 1 << 63, ..want(1) }, HOTMEM_EINVAL),
        (hotmem_request { min: u64::MAX, ..want(1) }, HOTMEM_ERANGE),
        (hotmem_request { max: u64::MAX, ..want(1) }, HOTMEM_ERANGE),
        (hotmem_request { min: 2 * MIB, max: MIB, ..want(1) }, HOTMEM_ENOMEM),
        (hotmem_request { at: 4097, flags: HOTMEM_AT, ..want(1) }, HOTMEM_EINVAL),
        (hotmem_request { at: !0 << 12, flags: HOTMEM_AT, ..want(1) }, HOTMEM_ERANGE),
        (hotmem_request { at: MEMORY_END, flags: HOTMEM_AT, ..want(1) }, HOTMEM_EBUSY),
        (hotmem_request { flags: 32, ..want(1) }, HOTMEM_EINVAL),
        (hotmem_request { flags: HOTMEM_NEAR | HOTMEM_ONLY, ..want(1) }, HOTMEM_EINVAL),
    ];
    for (want, code) in wrong {
        assert_eq!(machine.alloc(&want), Err(code), "{want:?}");
    }
    assert_eq!(machine.free(1, 1), HOTMEM_EINVAL);
    assert_eq!(machine.free(BOOT_END - 4096, 0), HOTMEM_EINVAL);
    assert_eq!(machine.free(!0 << 12, 1), HOTMEM_ERANGE);
    assert_eq!(machine.free(4096, u64::MAX), HOTMEM_ERANGE);
    assert_eq!(machine.free(BOOT_END, 1), HOTMEM_ENXIO);
    assert_eq!(machine.free(BOOT_END - 4096, 1), HOTMEM_ENOENT);
}
