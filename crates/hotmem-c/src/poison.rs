//! Reports frames with a hardware memory error to the engine, and lists them.

use crate::control::{control, range};
use crate::error::{Error, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ENOENT};
use crate::instance::{Running, hotmem, instance};
use ::hotmem::geometry::FRAME_SIZE;
use ::hotmem::{Pfn, Poisoned};

/// The poisoned frame has no owner, and is never allocated again.
pub const HOTMEM_POISONED_QUARANTINED: i32 = 0;
/// The poisoned frame is in use. It is quarantined when it is freed. The kernel should take it from
/// its owner and free it: its memory cannot go offline before, and no hook is asked to migrate it.
pub const HOTMEM_POISONED_IN_USE: i32 = 1;

fn number(state: Poisoned) -> i32 {
    match state {
        Poisoned::Quarantined => HOTMEM_POISONED_QUARANTINED,
        Poisoned::InUse => HOTMEM_POISONED_IN_USE,
    }
}

/// Marks the frame at `paddr` as poisoned by a hardware memory error, so that it is never allocated
/// again. Any number of frames can be poisoned. A handler of machine checks must defer the call.
/// Returns HOTMEM_POISONED_QUARANTINED or HOTMEM_POISONED_IN_USE.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_ENOENT: the frame is not present, or is no
/// RAM. HOTMEM_EAGAIN: the frame is being allocated or freed. HOTMEM_ENOMEM: no memory is free for
/// the engine's record. HOTMEM_EBUSY: the engine keeps metadata in the frame, or another call of the
/// control path is in progress.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_poison(h: *mut hotmem, paddr: u64) -> i32 {
    let mut state = HOTMEM_POISONED_QUARANTINED;
    // SAFETY: the caller guarantees it.
    let code = unsafe {
        control(h, &mut |Running { hotplug, .. }| {
            let frame = range(paddr, FRAME_SIZE)?.start();
            state = number(hotplug.poison(frame)?);
            Ok(())
        })
    };
    if code == 0 { state } else { code }
}

/// Finds the lowest poisoned frame at or above `*paddr`, and stores its address there. To list all
/// poisoned frames, begin at 0, and after each frame go on at the next. Context: any. Cost:
/// proportional to the number of poisoned frames. Returns HOTMEM_POISONED_QUARANTINED or
/// HOTMEM_POISONED_IN_USE.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL. HOTMEM_ENOENT: there is no such frame.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `paddr` is NULL or can be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_next_poisoned(h: *mut hotmem, paddr: *mut u64) -> i32 {
    let find = || {
        // SAFETY: the caller guarantees it. The same holds below.
        let frames = unsafe { instance(h) }?.frames()?;
        // SAFETY: see above.
        let paddr = unsafe { paddr.as_mut() }.ok_or(Error(HOTMEM_EFAULT))?;
        if !paddr.is_multiple_of(FRAME_SIZE) {
            return Err(Error(HOTMEM_EINVAL));
        }
        let from = Pfn::containing(*paddr).ok_or(Error(HOTMEM_ENOENT))?;
        let above = frames.poisoned().filter(|&(frame, _)| frame >= from);
        let (frame, state) = above.min_by_key(|&(frame, _)| frame).ok_or(Error(HOTMEM_ENOENT))?;
        *paddr = frame.phys_addr();
        Ok(number(state))
    };
    find().unwrap_or_else(|Error(code)| code)
}
