//! The kernel's functions that the engine calls.

use ::hotmem::{Hooks, Migration, Pfn, PfnRange, RangeError, Veto, Zone};
use core::ffi::c_void;
use core::ptr::null_mut;

/// `migrate` has migrated and freed some or all of the frames.
pub const HOTMEM_MIGRATE_MOVED: i32 = 0;
/// The owner has freed the frames.
pub const HOTMEM_MIGRATE_FREED: i32 = 1;
/// The frames cannot be migrated now. A later try may succeed.
pub const HOTMEM_MIGRATE_RETRY: i32 = 2;
/// The frames cannot be migrated.
pub const HOTMEM_MIGRATE_UNMOVABLE: i32 = 3;

/// The result of `hotmem_take_table` if no frame is left.
pub const HOTMEM_NONE: u64 = u64::MAX;

/// The kernel's functions. NULL means the default behaviour, which the comment of each function
/// describes. Each function gets `ctx`. Ranges are given by their physical address and their length
/// in bytes.
///
/// The engine calls `cpu`, `node` and `wake_reporter` in any context. It calls the other functions
/// from calls of the control path, in the context of these calls and under the caller's lock. These
/// functions may allocate and free frames. If they call the control path, the call returns
/// HOTMEM_EBUSY.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hotmem_hooks {
    /// The value that is passed to each function.
    pub ctx: *mut c_void,

    /// Returns the number of the CPU that runs the caller. The number is a hint and may be wrong.
    /// Default: 0.
    pub cpu: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u32>,
    /// Returns the NUMA node that is nearest to the caller. The node is a hint and may be wrong.
    /// Default: 0.
    pub node: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u32>,
    /// Called when memory can be reported, so that the kernel calls `hotmem_balloon_step` soon. This
    /// function may only set a flag or wake a thread. Default: does nothing.
    pub wake_reporter: Option<unsafe extern "C" fn(ctx: *mut c_void)>,

    /// Returns the maximal number of frames that `map` takes for page tables and descriptors of the
    /// range, whatever is mapped when `map` is called: other memory may be removed before, and its
    /// tables with it. With this function, the engine keeps 16 frames in reserve, so that memory can
    /// be added when no frame is free. Default: 0.
    pub tables_needed: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64) -> u64>,
    /// Maps the range in the direct map, readable and writable. Takes frames for page tables by
    /// `hotmem_take_table(tables)`, at most the number that `tables_needed` has returned. Cannot
    /// fail. `tables` is valid during the call. Default: does nothing, because the direct map
    /// already maps the range.
    pub map: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            paddr: u64,
            len: u64,
            tables: *mut hotmem_tables<'_, '_>,
        ),
    >,
    /// Unmaps the range and flushes it from all TLBs. Keeps the page tables, or
    /// `remap_tables_needed` says how many `remap` needs. Default: does nothing.
    pub unmap: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Returns the maximal number of frames that `remap` takes for page tables of the range, whatever
    /// is mapped then. A removal first allocates these frames, and fails if there are not enough.
    /// Default: 0, because `unmap` keeps the page tables.
    pub remap_tables_needed:
        Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64) -> u64>,
    /// Maps the range again, because the device did not unplug the memory. Takes frames for page
    /// tables by `hotmem_take_table(tables)`, at most the number that `remap_tables_needed` has
    /// returned. Cannot fail. `tables` is valid during the call. Default: does nothing.
    pub remap: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            paddr: u64,
            len: u64,
            tables: *mut hotmem_tables<'_, '_>,
        ),
    >,
    /// Called after the range was removed. Frees the page tables that mapped only this range, by
    /// `hotmem_free_table(tables)`. `tables` is valid during the call. Default: keeps the page
    /// tables.
    pub release_tables: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            paddr: u64,
            len: u64,
            tables: *mut hotmem_released<'_, '_>,
        ),
    >,

    /// Returns 0 if the range may go online, and another number to refuse. Default: 0.
    pub going_online:
        Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64, movable: bool) -> i32>,
    /// Called if a range stays offline although `going_online` has returned 0. Default: does
    /// nothing.
    pub online_cancelled: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Called after the range went online. Default: does nothing.
    pub onlined: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Returns 0 if the range, which is isolated, may go offline, and another number to refuse.
    /// Default: 0.
    pub going_offline: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64) -> i32>,
    /// Called if a range, or a part of it, stays online although `going_offline` has returned 0.
    /// Default: does nothing.
    pub offline_cancelled: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Called after the range went offline. Default: does nothing.
    pub offlined: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Frees memory in the range whose contents the kernel does not need, such as caches. Must not
    /// allocate. Default: does nothing.
    pub discard: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Migrates the contents of the range, which is allocated, to other frames, and frees the range.
    /// Returns one of HOTMEM_MIGRATE_*. Default: returns HOTMEM_MIGRATE_UNMOVABLE.
    pub migrate: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64) -> i32>,
}

// SAFETY: the kernel has promised that its functions can be called with `ctx` on every CPU.
unsafe impl Send for hotmem_hooks {}
// SAFETY: the kernel has promised that its functions can be called with `ctx` on every CPU.
unsafe impl Sync for hotmem_hooks {}

/// The frames for page tables that `hotmem_hooks.map` can take.
#[allow(missing_debug_implementations, reason = "a closure")]
pub struct hotmem_tables<'a, 'f>(pub(crate) &'a mut (dyn FnMut() -> Option<Pfn> + 'f));

/// The argument by which `hotmem_hooks.release_tables` frees page tables.
#[allow(missing_debug_implementations, reason = "a closure")]
pub struct hotmem_released<'a, 'f>(
    pub(crate) &'a mut (dyn FnMut(Pfn) -> Result<(), RangeError> + 'f),
);

/// Takes a frame for a page table. Its contents are undefined. Returns its physical address, or
/// HOTMEM_NONE if no frame is left.
///
/// # Safety
/// `tables` is NULL, or the argument of the call of `hotmem_hooks.map` that is in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_take_table(tables: *mut hotmem_tables<'_, '_>) -> u64 {
    // SAFETY: the caller guarantees it.
    let Some(tables) = (unsafe { tables.as_mut() }) else { return HOTMEM_NONE };
    (tables.0)().map_or(HOTMEM_NONE, Pfn::phys_addr)
}

/// Frees the frame of a page table. The frame was taken by `hotmem_take_table` or was allocated.
///
/// # Safety
/// `tables` is NULL, or the argument of the call of `hotmem_hooks.release_tables` that is in
/// progress. No code uses the frame any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free_table(tables: *mut hotmem_released<'_, '_>, paddr: u64) {
    // SAFETY: the caller guarantees it.
    if let Some(tables) = unsafe { tables.as_mut() }
        && let Some(frame) = Pfn::containing(paddr)
    {
        // The engine refuses a frame that the kernel does not own, and leaves it as it is. This
        // function has no result by which it could say so.
        (tables.0)(frame).ok();
    }
}

impl Default for hotmem_hooks {
    fn default() -> hotmem_hooks {
        hotmem_hooks::NONE
    }
}

impl hotmem_hooks {
    /// Hooks without functions, so that the engine uses the default of each.
    pub(crate) const NONE: hotmem_hooks = hotmem_hooks {
        ctx: null_mut(),
        cpu: None,
        node: None,
        wake_reporter: None,
        tables_needed: None,
        map: None,
        unmap: None,
        remap_tables_needed: None,
        remap: None,
        release_tables: None,
        going_online: None,
        online_cancelled: None,
        onlined: None,
        going_offline: None,
        offline_cancelled: None,
        offlined: None,
        discard: None,
        migrate: None,
    };

    /// Calls a function with a range, if the kernel has set the function.
    pub(crate) fn notify(
        &self,
        function: Option<unsafe extern "C" fn(*mut c_void, u64, u64)>,
        range: PfnRange,
    ) {
        if let Some(function) = function {
            // SAFETY: the kernel has promised that its functions can be called with `ctx`.
            unsafe { function(self.ctx, range.start().phys_addr(), range.bytes().0) };
        }
    }
}

const REFUSED: Veto = Veto("the kernel refused");

impl Hooks for hotmem_hooks {
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        let Some(function) = self.going_online else { return Ok(()) };
        let (paddr, len) = (range.start().phys_addr(), range.bytes().0);
        // SAFETY: the kernel has promised that its functions can be called with `ctx`.
        let answer = unsafe { function(self.ctx, paddr, len, zone == Zone::Movable) };
        if answer == 0 { Ok(()) } else { Err(REFUSED) }
    }

    fn online_cancelled(&mut self, range: PfnRange) {
        self.notify(self.online_cancelled, range);
    }

    fn onlined(&mut self, range: PfnRange) {
        self.notify(self.onlined, range);
    }

    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        let Some(function) = self.going_offline else { return Ok(()) };
        // SAFETY: the kernel has promised that its functions can be called with `ctx`.
        let answer = unsafe { function(self.ctx, range.start().phys_addr(), range.bytes().0) };
        if answer == 0 { Ok(()) } else { Err(REFUSED) }
    }

    fn offline_cancelled(&mut self, range: PfnRange) {
        self.notify(self.offline_cancelled, range);
    }

    fn offlined(&mut self, range: PfnRange) {
        self.notify(self.offlined, range);
    }

    fn discard(&mut self, within: PfnRange) {
        self.notify(self.discard, within);
    }

    fn migrate(&mut self, used: PfnRange) -> Migration {
        let Some(function) = self.migrate else {
            return Migration::Unmovable("this kernel does not migrate");
        };
        // SAFETY: the kernel has promised that its functions can be called with `ctx`.
        match unsafe { function(self.ctx, used.start().phys_addr(), used.bytes().0) } {
            HOTMEM_MIGRATE_MOVED => Migration::Moved,
            HOTMEM_MIGRATE_FREED => Migration::Freed,
            HOTMEM_MIGRATE_RETRY => Migration::Retry,
            _ => Migration::Unmovable("the kernel cannot move the frames"),
        }
    }
}
