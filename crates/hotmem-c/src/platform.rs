//! Implements the engine's platform and mapping with the kernel's functions.

use crate::hooks::{hotmem_hooks, hotmem_released, hotmem_tables};
use ::hotmem::{Describe, Map, NodeId, Pfn, PfnRange, Platform, RangeError, TABLE_RESERVE, Veto};
use core::cell::UnsafeCell;

/// A platform that calls the kernel's functions.
#[derive(Debug)]
pub(crate) struct CPlatform(UnsafeCell<hotmem_hooks>);

// SAFETY: `set` writes the cell one time, before other threads can access the instance.
unsafe impl Sync for CPlatform {}

impl CPlatform {
    /// Makes a platform without functions: every CPU has number 0.
    pub(crate) const fn new() -> CPlatform {
        CPlatform(UnsafeCell::new(hotmem_hooks::NONE))
    }

    /// Sets the kernel's functions.
    ///
    /// # Safety
    /// No code uses the instance yet.
    pub(crate) unsafe fn set(&self, hooks: hotmem_hooks) {
        // SAFETY: the caller guarantees that no code uses the instance, so no code reads the cell.
        unsafe { *self.0.get() = hooks };
    }

    #[inline]
    fn hooks(&self) -> &hotmem_hooks {
        // SAFETY: `set` wrote the cell before the instance was used, and nothing writes it
        // afterwards.
        unsafe { &*self.0.get() }
    }
}

impl Platform for CPlatform {
    #[inline]
    fn cpu(&self) -> usize {
        let hooks = self.hooks();
        // SAFETY: the kernel has promised that its functions can be called with `ctx`.
        hooks.cpu.map_or(0, |cpu| unsafe { cpu(hooks.ctx) } as usize)
    }

    fn node(&self) -> NodeId {
        let hooks = self.hooks();
        // SAFETY: the kernel has promised that its functions can be called with `ctx`.
        hooks.node.map_or(NodeId::ZERO, |node| NodeId(unsafe { node(hooks.ctx) }))
    }

    fn wake_reporter(&self) {
        let hooks = self.hooks();
        if let Some(wake) = hooks.wake_reporter {
            // SAFETY: the kernel has promised that its functions can be called with `ctx`.
            unsafe { wake(hooks.ctx) };
        }
    }
}

/// A mapping that calls the kernel's functions.
#[derive(Debug)]
pub(crate) struct CMapping {
    pub(crate) base: *mut u8,
    pub(crate) mappable_range: PfnRange,
    pub(crate) hooks: hotmem_hooks,
}

// SAFETY: the caller of `hotmem_boot` has promised that memory is mapped as `Map` requires. The
// caller of `hotmem_configure` has promised that the hooks map and unmap memory as described.
unsafe impl Map for CMapping {
    fn base(&self) -> *mut u8 {
        self.base
    }

    fn mappable_range(&self) -> PfnRange {
        self.mappable_range
    }

    fn table_reserve(&self) -> u64 {
        self.hooks.tables_needed.map_or(0, |_| TABLE_RESERVE)
    }

    fn tables_needed(&self, range: PfnRange) -> Result<u64, Veto> {
        let Some(needed) = self.hooks.tables_needed else { return Ok(0) };
        // SAFETY: the kernel has promised that its functions can be called with `ctx`.
        Ok(unsafe { needed(self.hooks.ctx, range.start().phys_addr(), range.bytes().0) })
    }

    unsafe fn map(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        let Some(map) = self.hooks.map else { return };
        let mut tables = hotmem_tables(take);
        // SAFETY: the kernel's functions can be called with `ctx`. `tables` lives as long as the
        // call.
        unsafe {
            map(self.hooks.ctx, range.start().phys_addr(), range.bytes().0, &raw mut tables);
        }
    }

    unsafe fn unmap(&mut self, range: PfnRange) {
        self.hooks.notify(self.hooks.unmap, range);
    }

    fn remap_tables_needed(&self, range: PfnRange) -> u64 {
        let Some(needed) = self.hooks.remap_tables_needed else { return 0 };
        // SAFETY: the kernel has promised that its functions can be called with `ctx`.
        unsafe { needed(self.hooks.ctx, range.start().phys_addr(), range.bytes().0) }
    }

    unsafe fn remap(&mut self, range: PfnRange, take: &mut dyn FnMut() -> Option<Pfn>) {
        let Some(remap) = self.hooks.remap else { return };
        let mut tables = hotmem_tables(take);
        // SAFETY: as in `map`.
        unsafe {
            remap(self.hooks.ctx, range.start().phys_addr(), range.bytes().0, &raw mut tables);
        }
    }

    unsafe fn release_tables(
        &mut self,
        range: PfnRange,
        free: &mut dyn FnMut(Pfn) -> Result<(), RangeError>,
    ) {
        let Some(release) = self.hooks.release_tables else { return };
        let mut tables = hotmem_released(free);
        // SAFETY: the kernel's functions can be called with `ctx`. `tables` lives as long as the
        // call.
        unsafe {
            release(self.hooks.ctx, range.start().phys_addr(), range.bytes().0, &raw mut tables);
        }
    }

    fn descriptors(&mut self) -> Option<&mut dyn Describe> {
        None
    }
}
