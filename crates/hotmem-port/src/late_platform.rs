//! A platform that can be told later which CPU is which.

use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use hotmem::Platform;

/// A [`Platform`] for an allocator that lies below the code that knows the CPUs: it takes every CPU
/// for CPU 0 until [`set_cpu`](Self::set_cpu). That is slower on several CPUs, and never wrong.
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
    /// One CPU, and nobody to wake.
    #[must_use]
    pub const fn new() -> LatePlatform {
        LatePlatform { cpu: AtomicPtr::new(null_mut()), wake: AtomicPtr::new(null_mut()) }
    }

    /// From now on `cpu` says which CPU calls it. It is called from any context.
    pub fn set_cpu(&self, cpu: fn() -> usize) {
        // Release pairs with `cpu`: what the function relies on is seen by who calls it.
        self.cpu.store(cpu as *mut (), Ordering::Release);
    }

    /// From now on `wake` is called when memory waits to be reported, as
    /// [`Platform::wake_reporter`] says.
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
        // SAFETY: only `set_cpu` stores anything else than null, and stores such a function.
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
