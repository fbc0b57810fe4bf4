use crate::instance::{BOOT_END, Instance, MEMORY_END, MIB, request};
use hotmem_c::*;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::null;

#[test]
fn an_instance_boots_and_its_frames_are_allocated_and_freed() {
    let instance = Instance::boot(None);
    let before = instance.counts();
    assert_eq!((before.present, before.online), (BOOT_END / 4096, BOOT_END / 4096));
    let run_start = instance.alloc(&request(100)).unwrap();
    assert_eq!(instance.counts().used, before.used + 100);
    assert_eq!(instance.free(run_start + 4096, 99), 0);
    assert_eq!(instance.free(run_start, 1), 0);
    assert_eq!(instance.counts().used, before.used);
}

#[test]
fn a_null_request_allocates_one_frame() {
    let instance = Instance::boot(None);
    let (mut first, mut second) = (0, 0);
    // SAFETY: `instance.as_ptr()` points to an instance.
    unsafe {
        assert_eq!(hotmem_alloc(instance.as_ptr(), null(), &mut first), 0);
        assert_eq!(hotmem_alloc(instance.as_ptr(), null(), &mut second), 0);
    }
    assert!(first != second && first >= 8192 && second < BOOT_END);
    assert_eq!((instance.free(first, 1), instance.free(second, 1)), (0, 0));
    assert_eq!(instance.free(first, 1), HOTMEM_ENOENT, "a double free");
}

/// Returns the number of another CPU at each call. The first CPUs have a record each in the engine, and
/// the others share one record.
extern "C" fn next_cpu(_: *mut c_void) -> u32 {
    thread_local!(static NEXT: Cell<u32> = const { Cell::new(0) });
    NEXT.set(NEXT.get() + 1);
    if NEXT.get().is_multiple_of(12) { u32::MAX } else { NEXT.get() % 12 }
}

#[test]
fn single_frames_are_allocated_until_memory_runs_out() {
    allocates_until_memory_runs_out(&Instance::boot(None));
}

#[test]
fn single_frames_are_allocated_on_many_cpus_until_memory_runs_out() {
    let hooks = hotmem_hooks { cpu: Some(next_cpu), ..hotmem_hooks::default() };
    allocates_until_memory_runs_out(&Instance::boot(Some(&hooks)));
}

fn allocates_until_memory_runs_out(instance: &Instance) {
    let h = instance.as_ptr();
    let mut frames = BTreeSet::new();
    // SAFETY: `h` points to an instance, and the test has allocated the frames that it frees.
    unsafe {
        let last_result = loop {
            match hotmem_alloc_frame(h) {
                frame @ 0.. => {
                    assert!(frames.insert(frame.cast_unsigned()), "the frame was allocated twice")
                }
                code => break code,
            }
        };
        assert_eq!((last_result, instance.counts().free), (HOTMEM_ENOMEM.into(), 0));
        let last = frames.pop_last().unwrap();
        assert!(last % 4096 == 0 && last < BOOT_END);
        assert_eq!(hotmem_free_frame(h, last + 1), HOTMEM_EINVAL);
        assert_eq!(hotmem_free_frame(h, 1 << 52), HOTMEM_ERANGE);
        assert_eq!(hotmem_free_frame(h, u64::MAX << 12), HOTMEM_ERANGE);
        assert_eq!(hotmem_free_frame(h, MEMORY_END), HOTMEM_ENXIO);
        assert_eq!(hotmem_free_frame(h, last), 0);
        assert_eq!(hotmem_free_frame(h, last), HOTMEM_ENOENT, "a double free");
        assert_eq!(hotmem_alloc_frame(h), last.cast_signed());
        frames.insert(last);
        for frame in frames {
            assert_eq!(hotmem_free_frame(h, frame), 0);
            assert_eq!(hotmem_free_frame(h, frame), HOTMEM_ENOENT, "a double free");
        }
    }
}

#[test]
fn an_allocation_satisfies_each_field_of_its_request() {
    let instance = Instance::boot(None);
    let aligned = instance.alloc(&hotmem_request { align: 64, ..request(3) }).unwrap();
    assert_eq!(aligned % (64 * 4096), 0);
    let (min, max) = (5 * MIB, 6 * MIB);
    let between = instance.alloc(&hotmem_request { min, max, ..request(7) }).unwrap();
    assert!((min..=max - 7 * 4096).contains(&between));
    // If a bound lies within a frame, the whole frame is excluded.
    let (min, max) = (5 * MIB + 1, 5 * MIB + 2 * 4096 + 1);
    let only = instance.alloc(&hotmem_request { min, max, ..request(1) });
    assert!(only.is_ok_and(|at| at == 5 * MIB + 4096) || between == 5 * MIB);
    let (at, flags) = (7 * MIB, HOTMEM_AT);
    let exact = hotmem_request { at, flags, ..request(2) };
    assert_eq!(instance.alloc(&exact), Ok(at));
    assert_eq!(instance.alloc(&exact), Err(HOTMEM_EBUSY));
    for flags in [HOTMEM_NEAR, HOTMEM_ONLY, HOTMEM_AVOIDING] {
        assert!(instance.alloc(&hotmem_request { flags, ..request(1) }).is_ok());
    }
    instance.plug(HOTMEM_ONLINE_MOVABLE);
    let flags = HOTMEM_MOVABLE;
    assert!(instance.alloc(&hotmem_request { flags, ..request(1) }).unwrap() >= BOOT_END);
    assert!(instance.alloc(&request(1)).unwrap() < BOOT_END);
}

#[test]
fn an_allocation_without_free_memory_fails() {
    let instance = Instance::boot(None);
    assert_eq!(instance.alloc(&request(MEMORY_END / 4096)), Err(HOTMEM_ENOMEM));
    let mut frames = Vec::new();
    let last_result = loop {
        match instance.alloc(&request(1)) {
            Ok(frame) => frames.push(frame),
            Err(code) => break code,
        }
    };
    assert_eq!((last_result, instance.counts().free), (HOTMEM_ENOMEM, 0));
    let count = frames.len();
    frames.sort_unstable();
    frames.dedup();
    assert_eq!(frames.len(), count, "a frame was allocated twice");
}

#[test]
fn reserved_memory_can_be_freed() {
    let instance = Instance::boot(None);
    let before = instance.counts();
    assert_eq!(instance.free(0, 2), 0);
    assert_eq!(instance.counts().free, before.free + 2);
    assert_eq!(instance.free(0, 2), HOTMEM_ENOENT);
}
