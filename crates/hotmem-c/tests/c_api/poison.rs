//! Tests the functions for poisoned frames, and those that describe the library and its results.

use crate::instance::{BOOT_END, Instance, request};
use hotmem_c::*;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::ptr::null_mut;

fn poisoned(instance: &Instance) -> Vec<(u64, i32)> {
    let mut list = vec![];
    let mut from = 0;
    loop {
        // SAFETY: `instance.as_ptr()` points to an instance.
        match unsafe { hotmem_next_poisoned(instance.as_ptr(), &raw mut from) } {
            HOTMEM_ENOENT => return list,
            state => list.push((from, state)),
        }
        from += 4096;
    }
}

#[test]
fn poisoned_frames_are_listed_and_not_allocated() {
    let instance = Instance::boot(None);
    let used = instance.alloc(&request(1)).unwrap();
    let free = (2 * BOOT_END / 3) / 4096 * 4096;
    // SAFETY: `instance.as_ptr()` points to an instance.
    let poison = |paddr| unsafe { hotmem_poison(instance.as_ptr(), paddr) };
    assert_eq!(poisoned(&instance), []);
    assert_eq!(poison(free), HOTMEM_POISONED_QUARANTINED);
    assert_eq!(poison(used), HOTMEM_POISONED_IN_USE);
    let mut expected = vec![(used, HOTMEM_POISONED_IN_USE), (free, HOTMEM_POISONED_QUARANTINED)];
    expected.sort_unstable();
    assert_eq!(poisoned(&instance), expected);
    assert_eq!(instance.free(used, 1), 0);
    assert!(poisoned(&instance).iter().all(|&(_, state)| state == HOTMEM_POISONED_QUARANTINED));
    let all: BTreeSet<u64> = std::iter::from_fn(|| instance.alloc(&request(1)).ok()).collect();
    assert!(!all.contains(&free) && !all.contains(&used));
    assert_eq!(poison(1), HOTMEM_EINVAL);
    assert_eq!(poison(BOOT_END), HOTMEM_ENOENT);
    // SAFETY: NULL is allowed.
    unsafe {
        assert_eq!(hotmem_poison(null_mut(), 0), HOTMEM_EFAULT);
        assert_eq!(hotmem_next_poisoned(null_mut(), null_mut()), HOTMEM_EFAULT);
        assert_eq!(hotmem_next_poisoned(instance.as_ptr(), null_mut()), HOTMEM_EFAULT);
        let mut unaligned = 1;
        let code = hotmem_next_poisoned(instance.as_ptr(), &raw mut unaligned);
        assert_eq!(code, HOTMEM_EINVAL);
        let mut beyond = u64::MAX - 4095;
        assert_eq!(hotmem_next_poisoned(instance.as_ptr(), &raw mut beyond), HOTMEM_ENOENT);
    }
}

#[test]
fn every_code_has_a_text_of_its_own() {
    let codes = [
        0,
        HOTMEM_EACCES,
        HOTMEM_EAGAIN,
        HOTMEM_EALREADY,
        HOTMEM_EBUSY,
        HOTMEM_EEXIST,
        HOTMEM_EFAULT,
        HOTMEM_EINVAL,
        HOTMEM_EIO,
        HOTMEM_ENOENT,
        HOTMEM_ENOMEM,
        HOTMEM_ENOSPC,
        HOTMEM_ENXIO,
        HOTMEM_ERANGE,
        i32::MIN,
    ];
    // SAFETY: the texts are static and end with a NUL.
    let text = |code| unsafe { CStr::from_ptr(hotmem_strerror(code)) };
    let texts: BTreeSet<_> = codes.into_iter().map(text).collect();
    assert_eq!(texts.len(), codes.len());
    assert_eq!(text(1), text(0));
}

#[test]
fn the_version_is_that_of_the_package() {
    let numbers = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse::<u32>().unwrap());
    assert_eq!(hotmem_version(), numbers.fold(0, |version, part| version * 100 + part));
    assert_eq!(hotmem_version(), HOTMEM_VERSION);
    assert_eq!(hotmem_violated_invariants(), 0);
}
