//! Tells a kernel which version it uses, what a code means, and whether the engine found a bug in
//! itself.

use crate::error::{
    HOTMEM_EACCES, HOTMEM_EAGAIN, HOTMEM_EALREADY, HOTMEM_EBUSY, HOTMEM_EEXIST, HOTMEM_EFAULT,
    HOTMEM_EINVAL, HOTMEM_EIO, HOTMEM_ENOENT, HOTMEM_ENOMEM, HOTMEM_ENOSPC, HOTMEM_ENXIO,
    HOTMEM_ERANGE, HOTMEM_EXDEV,
};
use core::ffi::{CStr, c_char};

/// The version of the header: 10000 for each major version, 100 for each minor version, 1 for each
/// patch.
pub const HOTMEM_VERSION: u32 = 100;

/// Returns the version of the library, as HOTMEM_VERSION gives that of the header. The two must be
/// equal.
#[unsafe(no_mangle)]
pub extern "C" fn hotmem_version() -> u32 {
    HOTMEM_VERSION
}

/// Returns how many violations of its own invariants the library has counted, in all instances. If it
/// is not 0, the kernel should report it and restart. Context: any.
#[unsafe(no_mangle)]
pub extern "C" fn hotmem_violated_invariants() -> u64 {
    ::hotmem::violated_invariants().count
}

/// Returns a text that describes the result of a function. It is static, and never NULL. Context:
/// any.
#[unsafe(no_mangle)]
pub extern "C" fn hotmem_strerror(code: i32) -> *const c_char {
    text_of(code).as_ptr()
}

fn text_of(code: i32) -> &'static CStr {
    match code {
        HOTMEM_ENOENT => c"not announced, not present, or not allocated",
        HOTMEM_EIO => c"the driver has stopped, because its device cannot be trusted",
        HOTMEM_ENXIO => c"not online memory of this instance",
        HOTMEM_EAGAIN => c"the memory is being allocated or freed, try again",
        HOTMEM_ENOMEM => c"no suitable memory is free",
        HOTMEM_EACCES => c"a hook refused",
        HOTMEM_EFAULT => c"a required pointer is NULL",
        HOTMEM_EBUSY => c"in use, isolated, or another call is in progress",
        HOTMEM_EEXIST => c"announced, present or online already",
        HOTMEM_EXDEV => c"shares a section of 128 MiB with memory of another node",
        HOTMEM_EINVAL => c"a value is invalid, or a struct was not initialised",
        HOTMEM_ENOSPC => c"a table of the engine is full",
        HOTMEM_ERANGE => c"beyond the highest address",
        HOTMEM_EALREADY => c"done before",
        0.. => c"success",
        _ => c"unknown error",
    }
}
