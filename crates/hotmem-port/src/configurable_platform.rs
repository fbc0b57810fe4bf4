//! Implements a platform whose function for CPU numbers can be set after boot.

use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use hotmem::Platform;

/// A [`Platform`] for a kernel that numbers its CPUs only after the allocator is in use. Every CPU
/// has number 0 until [`set_cpu`](Self::set_cpu) is called. CPUs with the same number allocate
/// correctly, but more slowly. Existing kernels report how many pages are in use, so the engine
/// [counts](Platform::COUNTS_ALLOCATED) them.
///
/// ```
/// use hotmem::{Frames, Platform};
/// use hotmem_port::ConfigurablePlatform;
///
/// static FRAMES: Frames<ConfigurablePlatform> = Frames::new(ConfigurablePlatform::new());
/// assert_eq!(FRAMES.platform().cpu(), 0);
/// // When CPUs have been numbered:
/// FRAMES.platform().set_cpu(|| 3);
/// assert_eq!(FRAMES.platform().cpu(), 3);
/// ```
#[derive(Debug)]
pub struct ConfigurablePlatform {
    cpu: AtomicPtr<()>,
    wake: AtomicPtr<()>,
}

impl ConfigurablePlatform {
    /// Makes a platform on which every CPU has number 0 and no reporter is woken.
    #[must_use]
    pub const fn new() -> ConfigurablePlatform {
        ConfigurablePlatform { cpu: AtomicPtr::new(null_mut()), wake: AtomicPtr::new(null_mut()) }
    }

    /// Sets the function that returns the number of the calling CPU. It is called from any context.
    pub fn set_cpu(&self, cpu: fn() -> usize) {
        // Release pairs with Acquire in `Platform::cpu`, so that a CPU that loads the function sees
        // the data that the function uses.
        self.cpu.store(cpu as *mut (), Ordering::Release);
    }

    /// Sets the function for [`Platform::wake_reporter`], which is called when memory waits to be
    /// reported.
    pub fn set_wake_reporter(&self, wake: fn()) {
        // Release pairs with Acquire in `wake_reporter`, as in `set_cpu`.
        self.wake.store(wake as *mut (), Ordering::Release);
    }
}

impl Default for ConfigurablePlatform {
    fn default() -> Self {
        ConfigurablePlatform::new()
    }
}

impl Platform for ConfigurablePlatform {
    const COUNTS_ALLOCATED: bool = true;

    #[inline]
    fn cpu(&self) -> usize {
        // Acquire pairs with Release in `set_cpu`.
        let cpu = self.cpu.load(Ordering::Acquire);
        if cpu.is_null() {
            return 0;
        }
        // SAFETY: the pointer is not null, so `set_cpu` stored it, and `set_cpu` stores a function of
        // this type.
        unsafe { transmute::<*mut (), fn() -> usize>(cpu)() }
    }

    fn wake_reporter(&self) {
        // Acquire pairs with Release in `set_wake_reporter`.
        let wake = self.wake.load(Ordering::Acquire);
        if !wake.is_null() {
            // SAFETY: the pointer is not null, so `set_wake_reporter` stored it, and
            // `set_wake_reporter` stores a function of this type.
            unsafe { transmute::<*mut (), fn()>(wake)() }
        }
    }
}
