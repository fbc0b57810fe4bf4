use crate::machine::{BOOT_END, MEMORY_END, MIB, Machine, want};
use hotmem_c::*;
use std::collections::BTreeSet;
use std::ptr::null;

#[test]
fn a_machine_boots_and_its_frames_are_allocated_and_freed() {
    let machine = Machine::boot(None);
    let before = machine.counts();
    assert_eq!((before.present, before.online), (BOOT_END / 4096, BOOT_END / 4096));
    let many = machine.alloc(&want(100)).unwrap();
    assert_eq!(machine.counts().used, before.used + 100);
    assert_eq!(machine.free(many + 4096, 99), 0);
    assert_eq!(machine.free(many, 1), 0);
    assert_eq!(machine.counts().used, before.used);
}

#[test]
fn a_null_request_allocates_one_frame() {
    let machine = Machine::boot(None);
    let (mut first, mut second) = (0, 0);
    // SAFETY: `machine.as_ptr()` points to a machine.
    unsafe {
        assert_eq!(hotmem_alloc(machine.as_ptr(), null(), &mut first), 0);
        assert_eq!(hotmem_alloc(machine.as_ptr(), null(), &mut second), 0);
    }
    assert!(first != second && first >= 8192 && second < BOOT_END);
    assert_eq!((machine.free(first, 1), machine.free(second, 1)), (0, 0));
    assert_eq!(machine.free(first, 1), HOTMEM_ENOENT, "a double free");
}

#[test]
fn single_frames_are_allocated_until_memory_runs_out() {
    let machine = Machine::boot(None);
    let h = machine.as_ptr();
    let mut frames = BTreeSet::new();
    // SAFETY: `h` points to a machine, and the test has allocated the frames that it frees.
    unsafe {
        let last = loop {
            match hotmem_alloc_frame(h) {
                frame @ 0.. => {
                    assert!(frames.insert(frame.cast_unsigned()), "the frame was allocated twice")
                }
                code => break code,
            }
        };
        assert_eq!((last, machine.counts().free), (HOTMEM_ENOMEM.into(), 0));
        let last = frames.pop_last().unwrap();
        assert!(last % 4096 == 0 && last < BOOT_END);
        assert_eq!(hotmem_free_frame(h, last + 1), HOTMEM_EINVAL);
        assert_eq!(hotmem_free_frame(h, 1 << 52), HOTMEM_ERANGE);
        assert_eq!(hotmem_free_frame(h, u64::MAX << 12), HOTMEM_ERANGE);
        assert_eq!(hotmem_free_frame(h, MEMORY_END), HOTMEM_ENXIO);
        assert_eq!(hotmem_free_frame(h, last), 0);
        assert_eq!(hotmem_free_frame(h, last), HOTMEM_ENOENT, "a double free");
        assert_eq!(hotmem_alloc_frame(h), last.cast_signed());
    }
}

#[test]
fn every_field_of_a_request_is_honoured() {
    let machine = Machine::boot(None);
    let aligned = machine.alloc(&hotmem_request { align: 64, ..want(3) }).unwrap();
    assert_eq!(aligned % (64 * 4096), 0);
    let (min, max) = (5 * MIB, 6 * MIB);
    let between = machine.alloc(&hotmem_request { min, max, ..want(7) }).unwrap();
    assert!((min..=max - 7 * 4096).contains(&between));
    // If a bound lies within a frame, the whole frame is excluded.
    let (min, max) = (5 * MIB + 1, 5 * MIB + 2 * 4096 + 1);
    let only = machine.alloc(&hotmem_request { min, max, ..want(1) });
    assert!(only.is_ok_and(|at| at == 5 * MIB + 4096) || between == 5 * MIB);
    let (at, flags) = (7 * MIB, HOTMEM_AT);
    let exact = hotmem_request { at, flags, ..want(2) };
    assert_eq!(machine.alloc(&exact), Ok(at));
    assert_eq!(machine.alloc(&exact), Err(HOTMEM_EBUSY));
    for flags in [HOTMEM_NEAR, HOTMEM_ONLY, HOTMEM_AVOIDING] {
        assert!(machine.alloc(&hotmem_request { flags, ..want(1) }).is_ok());
    }
    machine.plug(HOTMEM_ONLINE_MOVABLE);
    let flags = HOTMEM_MOVABLE;
    assert!(machine.alloc(&hotmem_request { flags, ..want(1) }).unwrap() >= BOOT_END);
    assert!(machine.alloc(&want(1)).unwrap() < BOOT_END);
}

#[test]
fn an_allocation_without_free_memory_fails() {
    let machine = Machine::boot(None);
    assert_eq!(machine.alloc(&want(MEMORY_END / 4096)), Err(HOTMEM_ENOMEM));
    let mut frames = Vec::new();
    let last = loop {
        match machine.alloc(&want(1)) {
            Ok(frame) => frames.push(frame),
            Err(code) => break code,
        }
    };
    assert_eq!((last, machine.counts().free), (HOTMEM_ENOMEM, 0));
    let count = frames.len();
    frames.sort_unstable();
    frames.dedup();
    assert_eq!(frames.len(), count, "each frame has one owner");
}

#[test]
fn reserved_memory_can_be_freed_later() {
    let machine = Machine::boot(None);
    let before = machine.counts();
    assert_eq!(machine.free(0, 2), 0);
    assert_eq!(machine.counts().free, before.free + 2);
    assert_eq!(machine.free(0, 2), HOTMEM_ENOENT);
}
