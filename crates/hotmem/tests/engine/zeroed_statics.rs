//! Tests that an instance without memory is all zeroes, so that a static instance takes no space in
//! the kernel's image.

use hotmem::{Frames, OneCpu};
use std::sync::atomic::AtomicU64;

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// A static that is not all zeroes, to check the test.
static NOT_ZERO: AtomicU64 = AtomicU64::new(1);

unsafe extern "C" {
    /// The start and the end of zeroed data. The linker defines these names.
    static __bss_start: u8;
    static _end: u8;
}

/// Returns whether an object lies in zeroed data, which an image does not contain.
fn is_zeroed_data<T>(object: &'static T) -> bool {
    let zeroed = (&raw const __bss_start).addr()..(&raw const _end).addr();
    let start = core::ptr::from_ref(object).addr();
    zeroed.contains(&start) && start + size_of::<T>() <= zeroed.end
}

#[test]
fn a_static_instance_takes_no_space_in_the_image() {
    assert!(is_zeroed_data(&FRAMES), "`Frames::new` is not all zeroes");
    assert!(!is_zeroed_data(&NOT_ZERO));
}
