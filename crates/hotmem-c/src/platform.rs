//! Implements the engine's platform and mapping by the kernel's functions.

use crate::hooks::{hotmem_hooks, hotmem_released, hotmem_tables};
use ::hotmem::{Mapping, NodeId, Pfn, PfnRange, Platform};
use core::cell::UnsafeCell;

/// The platform, which calls the kernel's functions.
#[derive(Debug)]
pub(crate) struct CPlatform(UnsafeCell<hotmem_hooks>);

// SAFETY: it is written once, before it is shared.
unsafe impl Sync for CPlatform {}

impl CPlatform {
    /// Makes a platform without functions: every CPU has number 0.
    pub(crate) const fn new() -> CPlatform {
        CPlatform(UnsafeCell::new(hotmem_hooks::NONE))
    }

    /// Sets the kernel's functions.
    ///
    /// # Safety
    /// Nobody uses the machine yet.
    pub(crate) unsafe fn set(&self, hooks: hotmem_hooks) {
        // SAFETY: by the caller's promise.
        unsafe { *self.0.get() = hooks };
    }

    #[inline]
    fn hooks(&self) -> &hotmem_hooks {
        // SAFETY: it is not written any more.
        unsafe { &*self.0.get() }
    }
}

impl Platform for CPlatform {
    #[inline]
    fn cpu(&self) -> usize {
        let hooks = self.hooks();
        match hooks.cpu {
            // SAFETY: the kernel has promised that its functions can be called with `ctx`.
            Some(cpu) => unsafe { cpu(hooks.ctx) as usize },
            None => 0,
        }
    }

    fn node(&self) -> NodeId {
        let hooks = self.hooks();
        // SAFETY: as above.
        hooks.node.map_or(NodeId::ZERO, |node| NodeId(unsafe { node(hooks.ctx) }))
    }

    fn wake_reporter(&self) {
        let hooks = self.hooks();
        if let Some(wake) = hooks.wake_reporter {
            // SAFETY: as above.
            unsafe { wake(hooks.ctx) };
        }
    }
}

/// The mapping, which calls the kernel's functions.
#[derive(Debug)]
pub(crate) struct CMapping {
    pub(crate) base: *mut u8,
    pub(crate) reach: PfnRange,
    pub(crate) hooks: hotmem_hooks,
}

// SAFETY: the caller of `hotmem_boot` has promised what the trait asks for.
unsafe impl Mapping for CMapping {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn reach(&self) -> PfnRange {
        self.reach
    }

    fn tables_needed(&self, range: PfnRange) -> u64 {
        let Some(needed) = self.hooks.tables_needed else { return 0 };
        // SAFETY: the kernel has promised that its functions can be called with `ctx`. The same
        // holds below.
        unsafe { needed(self.hooks.ctx, range.start().phys_addr(), range.bytes().0) }
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        let Some(map) = self.hooks.map else { return };
        let mut tables = hotmem_tables(take);
        // SAFETY: see above. `tables` lives as long as the call.
        unsafe {
            map(self.hooks.ctx, range.start().phys_addr(), range.bytes().0, &raw mut tables);
        }
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        self.hooks.notify(self.hooks.unmap, range);
    }

    unsafe fn remap(&mut self, range: PfnRange) {
        self.hooks.notify(self.hooks.remap, range);
    }

    unsafe fn release_tables(&mut self, range: PfnRange, free: &mut dyn FnMut(Pfn)) {
        let Some(release) = self.hooks.release_tables else { return };
        let mut tables = hotmem_released(free);
        // SAFETY: see above. `tables` lives as long as the call.
        unsafe {
            release(self.hooks.ctx, range.start().phys_addr(), range.bytes().0, &raw mut tables);
        }
    }
}
