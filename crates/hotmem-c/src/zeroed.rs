//! Allocates and frees frames that are known to be zero.

use crate::control::{control, range};
use crate::error::{Error, HOTMEM_EFAULT, HOTMEM_ENOENT, HOTMEM_ERANGE, code};
use crate::frames::{frame_at_address, with_retries};
use crate::instance::{hotmem, instance};
use crate::platform::CPlatform;
use crate::request::{hotmem_request, request_at};
use ::hotmem::{Allocation, Contents, Frames, Pfn, PfnRange};

/// Keeps marks from now on of free memory that is known to be zero, because the kernel has freed it
/// by `hotmem_free_zeroed` or added it by `hotmem_add_zeroed`, or because a balloon with
/// HOTMEM_TRUST_HOST says so. Call this after `hotmem_boot`. Context: any.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_keep_zero_marks(h: *mut hotmem) -> i32 {
    let keep = || {
        // SAFETY: the caller guarantees it.
        let frames = unsafe { instance(h) }?.frames()?;
        // SAFETY: callers of `hotmem_free_zeroed` and `hotmem_add_zeroed` guarantee zeroes, and a device
        // is believed only if the kernel has said that it trusts its host (HOTMEM_TRUST_HOST).
        unsafe { frames.keep_zero_marks() };
        Ok(())
    };
    code(keep())
}

/// Adds memory as `hotmem_add` does, for a platform that promises that all of it is zero, and that
/// nobody writes to it before it is online. When the memory comes online for the first time, it is
/// known to be zero, if marks were kept (`hotmem_keep_zero_marks`) when it was added.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_ENOMEM, HOTMEM_EBUSY.
/// HOTMEM_ENOENT: the range was not announced. HOTMEM_EXDEV: a section of the range has memory of
/// another node. HOTMEM_ENOSPC: the instance has memory of 256 other nodes.
///
/// # Safety
/// The same as for `hotmem_add`; and the platform keeps its promise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_add_zeroed(h: *mut hotmem, paddr: u64, len: u64) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe {
        control(h, &mut |running| {
            let addition = running.hotplug.prepare_add(range(paddr, len)?)?;
            running.hotplug.commit_add(addition.zeroed());
            Ok(())
        })
    }
}

/// Allocates frames as `hotmem_alloc` does, and stores in `is_zero` whether all of them are known to be
/// zero. If they are not, their contents are undefined. Context: any. Never waits.
///
/// # Errors
/// HOTMEM_ENOMEM, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_EBUSY: with HOTMEM_AT, a
/// frame is not free. HOTMEM_EAGAIN: at each of several tries, other CPUs were in the middle of
/// allocations and frees.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `request` is NULL or a request. `paddr` and `is_zero` are NULL or
/// can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc_with_contents(
    h: *mut hotmem,
    request: *const hotmem_request,
    paddr: *mut u64,
    is_zero: *mut bool,
) -> i32 {
    let allocate = || {
        if is_zero.is_null() {
            return Err(Error(HOTMEM_EFAULT));
        }
        // SAFETY: the caller guarantees it. The same holds below.
        let request = unsafe { request_at(request) }?;
        let alloc = |frames: &'static Frames<CPlatform>| {
            let (allocation, contents) = with_retries(|| frames.alloc_with_contents(request))?;
            Ok((allocation, contents == Contents::Filled(0)))
        };
        // SAFETY: see above.
        let known = unsafe { store_allocation(h, paddr, alloc) }?;
        // SAFETY: see above.
        unsafe { is_zero.write(known) };
        Ok(())
    };
    code(allocate())
}

/// Allocates frames as `hotmem_alloc` does, and fills them with zeroes through the direct map, unless
/// they are known to be zero. Context: any. Never waits.
///
/// # Errors
/// HOTMEM_ENOMEM, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_EBUSY: with HOTMEM_AT, a
/// frame is not free. HOTMEM_EAGAIN: at each of several tries, other CPUs were in the middle of
/// allocations and frees.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `request` is NULL or a request. `paddr` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc_zeroed(
    h: *mut hotmem,
    request: *const hotmem_request,
    paddr: *mut u64,
) -> i32 {
    let allocate = || {
        // SAFETY: the caller guarantees it. The same holds below.
        let request = unsafe { request_at(request) }?;
        let alloc = |frames: &'static Frames<CPlatform>| {
            Ok((with_retries(|| frames.alloc_zeroed(request))?, ()))
        };
        // SAFETY: see above.
        unsafe { store_allocation(h, paddr, alloc) }
    };
    code(allocate())
}

/// Allocates the lowest free pageblock (2 MiB) that is not known to be zero, so that a kernel that is
/// idle can fill it with zeroes and then free it by `hotmem_free_zeroed`. Memory that the host has
/// taken is left out. Until the kernel frees the pageblock, it is allocated, so another call may find
/// no memory. Context: any. Never waits. Cost: proportional to the memory that was added.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL. HOTMEM_ENOENT: all such memory is known to be zero, or no marks are
/// kept (`hotmem_keep_zero_marks`).
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `paddr` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_alloc_unzeroed(h: *mut hotmem, paddr: *mut u64) -> i32 {
    let alloc = |frames: &'static Frames<CPlatform>| {
        Ok((frames.unzeroed_pageblocks().next().ok_or(Error(HOTMEM_ENOENT))?, ()))
    };
    // SAFETY: the caller guarantees it.
    code(unsafe { store_allocation(h, paddr, alloc) })
}

/// Frees frames as `hotmem_free` does, for a caller that knows that all of them are zero. Whole
/// pageblocks (2 MiB) that were allocated as wholes are then known to be zero. Context: any. Never
/// waits.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_ENOENT: a frame is not allocated.
/// HOTMEM_ENXIO: a frame is not online memory of this instance.
///
/// # Safety
/// The same as for `hotmem_free`; and all the frames are zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free_zeroed(h: *mut hotmem, paddr: u64, frames: u64) -> i32 {
    let free = || {
        // SAFETY: the caller guarantees it. The same holds below.
        let instance = unsafe { instance(h) }?.frames()?;
        let start: Pfn = frame_at_address(paddr)?;
        let range = PfnRange::with_len(start, frames).ok_or(Error(HOTMEM_ERANGE))?;
        // SAFETY: see above.
        Ok(unsafe { instance.free_zeroed_raw(range) }?)
    };
    code(free())
}

/// Allocates from the instance at `h` by `alloc`, and stores the address of the first frame in `paddr`.
/// Returns what `alloc` returns beside the allocation.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `paddr` is NULL or can be written.
unsafe fn store_allocation<T>(
    h: *mut hotmem,
    paddr: *mut u64,
    alloc: impl FnOnce(&'static Frames<CPlatform>) -> Result<(Allocation<'static, CPlatform>, T), Error>,
) -> Result<T, Error> {
    // SAFETY: the caller guarantees it. The same holds below.
    let frames = unsafe { instance(h) }?.frames()?;
    if paddr.is_null() {
        return Err(Error(HOTMEM_EFAULT));
    }
    let (allocation, result) = alloc(frames)?;
    // SAFETY: see above.
    unsafe { paddr.write(allocation.into_raw().start().phys_addr()) };
    Ok(result)
}
