//! A platform whose CPU numbers can be set later.

use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use hotmem::Platform;

/// A [`Platform`] for an allocator that lies below the code that knows the CPUs: every CPU has
/// number 0 until [`set_cpu`](Self::set_cpu) is called. That is correct, but slower on several
/// CPUs.
///
/// ```
/// use hotmem::{Frames, Platform};
/// use hotmem_port::LatePlatform;
///
/// static FRAMES: Frames<LatePlatform> = Frames::new(LatePlatform::new());
/// assert_eq!(FRAMES.platform().cpu(), 0);
/// // When CPUs have been numbered:
/// FRAMES.platform().set_cpu(|| 3);
/// assert_eq!(FRAMES.platform().cpu(), 3);
/// ```
#[derive(Debug)]
pub struct LatePlatform {
    cpu: AtomicPtr<()>,
    wake: AtomicPtr<()>,
}

impl LatePlatform {
    /// Makes a platform on which every CPU has number 0 and no reporter is woken.
    #[must_use]
    pub const fn new() -> LatePlatform {
        LatePlatform { cpu: AtomicPtr::new(null_mut()), wake: AtomicPtr::new(null_mut()) }
    }

    /// Sets the function that returns the number of the calling CPU. It is called from any context.
    pub fn set_cpu(&self, cpu: fn() -> usize) {
        // Release pairs with `cpu`, so that callers see the data that the function uses.
        self.cpu.store(cpu as *mut (), Ordering::Release);
    }

    /// Sets the function for [`Platform::wake_reporter`], which is called when memory waits to be
    /// reported.
    pub fn set_wake_reporter(&self, wake: fn()) {
        // Release pairs with `wake_reporter`.
        self.wake.store(wake as *mut (), Ordering::Release);
    }
}

impl Default for LatePlatform {
    fn default() -> Self {
        LatePlatform::new()
    }
}

impl Platform for LatePlatform {
    #[inline]
    fn cpu(&self) -> usize {
        // Acquire pairs with `set_cpu`.
        let cpu = self.cpu.load(Ordering::Acquire);
        if cpu.is_null() {
            return 0;
        }
        // SAFETY: every pointer but null was stored by `set_cpu`, which stores a function of this
        // type.
        unsafe { transmute::<*mut (), fn() -> usize>(cpu)() }
    }

    fn wake_reporter(&self) {
        // Acquire pairs with `set_wake_reporter`.
        let wake = self.wake.load(Ordering::Acquire);
        if !wake.is_null() {
            // SAFETY: as in `cpu`, for `set_wake_reporter`.
            unsafe { transmute::<*mut (), fn()>(wake)() }
        }
    }
}
