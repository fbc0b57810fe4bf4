//! The kernel's functions that the engine calls.

use ::hotmem::{Hooks, Migration, Pfn, PfnRange, Veto, Zone};
use core::ffi::c_void;
use core::ptr::null_mut;

/// `migrate` has moved and freed some or all of the frames.
pub const HOTMEM_MIGRATE_MOVED: i32 = 0;
/// The owner has freed the frames.
pub const HOTMEM_MIGRATE_FREED: i32 = 1;
/// The frames cannot be moved now; a later try may succeed.
pub const HOTMEM_MIGRATE_RETRY: i32 = 2;
/// The frames can never be moved.
pub const HOTMEM_MIGRATE_UNMOVABLE: i32 = 3;

/// `hotmem_take_table` has no frame left.
pub const HOTMEM_NONE: u64 = u64::MAX;

/// The kernel's functions. NULL stands for the default, which is given with each. All get `ctx`,
/// and all ranges are in bytes.
///
/// `cpu`, `node` and `wake_reporter` are called in any context. The others are called by the calls
/// of the control path, in their context and under the caller's lock: they may allocate and free
/// frames, but a call of the control path returns HOTMEM_EBUSY.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct hotmem_hooks {
    /// Passed to each function.
    pub ctx: *mut c_void,

    /// Returns the number of the CPU that runs the caller: a hint, which may be wrong. Default: 0.
    pub cpu: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u32>,
    /// Returns the NUMA node that is nearest to the caller: a hint as well. Default: 0.
    pub node: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u32>,
    /// Called when memory waits to be reported: the kernel must call `hotmem_balloon_step` soon.
    /// This function may only set a flag or wake a thread. Default: nothing.
    pub wake_reporter: Option<unsafe extern "C" fn(ctx: *mut c_void)>,

    /// Returns how many frames for page tables (and descriptors) mapping the range needs at most.
    /// Default: 0.
    pub tables_needed: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64) -> u64>,
    /// Maps the range in the direct map, readable and writable. Takes frames for page tables by
    /// `hotmem_take_table(tables)`, at most as many as `tables_needed` has returned. Cannot fail.
    /// `tables` is valid during the call. Default: the range is mapped already.
    pub map: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            paddr: u64,
            len: u64,
            tables: *mut hotmem_tables<'_, '_>,
        ),
    >,
    /// Unmaps the range and flushes it from every TLB. Keeps the page tables. Default: nothing.
    pub unmap: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Maps the range again, by the page tables that `unmap` has kept, because the device did not
    /// take the memory. Default: nothing.
    pub remap: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Passes the page tables that mapped only the range to `hotmem_free_table(tables)`, because the
    /// range was removed. `tables` is valid during the call. Default: the kernel keeps them.
    pub release_tables: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            paddr: u64,
            len: u64,
            tables: *mut hotmem_released<'_, '_>,
        ),
    >,

    /// Returns 0 if the range may go online, or anything else to refuse. Default: 0.
    pub going_online:
        Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64, movable: bool) -> i32>,
    /// Called when a range stays offline although `going_online` has agreed. Default: nothing.
    pub online_cancelled: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Called when the range is online. Default: nothing.
    pub onlined: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Returns 0 if the range, which is isolated, may go offline, or anything else to refuse.
    /// Default: 0.
    pub going_offline: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64) -> i32>,
    /// Called when a range stays online although `going_offline` has agreed. Default: nothing.
    pub offline_cancelled: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Called when the range is offline. Default: nothing.
    pub offlined: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Frees memory in the range that the kernel can do without. It must not allocate. Default:
    /// nothing.
    pub discard: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64)>,
    /// Moves the contents of the range, which is allocated, to other frames and frees the range.
    /// Returns one of HOTMEM_MIGRATE_*. Default: HOTMEM_MIGRATE_UNMOVABLE.
    pub migrate: Option<unsafe extern "C" fn(ctx: *mut c_void, paddr: u64, len: u64) -> i32>,
}

// SAFETY: the kernel has promised that its functions can be called with `ctx` on every CPU.
unsafe impl Send for hotmem_hooks {}
// SAFETY: the kernel has promised that its functions can be called with `ctx` on every CPU.
unsafe impl Sync for hotmem_hooks {}

/// Frames for page tables, lent to `hotmem_hooks.map`.
#[allow(missing_debug_implementations, reason = "a closure")]
pub struct hotmem_tables<'a, 'f>(pub(crate) &'a mut (dyn FnMut() -> Option<Pfn> + 'f));

/// Takes frames of page tables back from `hotmem_hooks.release_tables`.
#[allow(missing_debug_implementations, reason = "a closure")]
pub struct hotmem_released<'a, 'f>(pub(crate) &'a mut (dyn FnMut(Pfn) + 'f));

/// Takes a frame for a page table, with undefined contents. Returns its physical address, or
/// HOTMEM_NONE if there is none left.
///
/// # Safety
/// `tables` is null, or the argument of the call of `map` that is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_take_table(tables: *mut hotmem_tables<'_, '_>) -> u64 {
    // SAFETY: by the caller's promise.
    let Some(tables) = (unsafe { tables.as_mut() }) else { return HOTMEM_NONE };
    (tables.0)().map_or(HOTMEM_NONE, Pfn::phys_addr)
}

/// Frees the frame of a page table, which came from `hotmem_take_table` or was allocated.
///
/// # Safety
/// `tables` is null, or the argument of the call of `release_tables` that is running. Nobody uses
/// the frame any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_free_table(tables: *mut hotmem_released<'_, '_>, paddr: u64) {
    // SAFETY: by the caller's promise.
    if let Some(tables) = unsafe { tables.as_mut() }
        && let Some(frame) = Pfn::containing(paddr)
    {
        (tables.0)(frame);
    }
}

impl Default for hotmem_hooks {
    fn default() -> hotmem_hooks {
        hotmem_hooks::NONE
    }
}

impl hotmem_hooks {
    /// Hooks without functions: the engine uses the default of each.
    pub(crate) const NONE: hotmem_hooks = hotmem_hooks {
        ctx: null_mut(),
        cpu: None,
        node: None,
        wake_reporter: None,
        tables_needed: None,
        map: None,
        unmap: None,
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

    /// Calls a function that is notified of a range.
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
