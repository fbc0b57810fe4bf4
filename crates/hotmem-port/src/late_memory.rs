//! Gives an instance free memory that the kernel finds after the start.

use core::fmt;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{
    AddError, AnnounceError, Hooks, Hotplug, Map, OnlineType, PfnRange, Platform, RangeError, State,
};
use hotmem_invariant::OrRecordViolation;

/// The reason why memory could not be added after the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LateMemoryError {
    /// The memory was refused.
    Range(RangeError),
    /// The memory cannot be announced.
    Announce(AnnounceError),
    /// The memory cannot be added.
    Add(AddError),
}

/// Adds free memory to an instance that was started: memory that firmware hands over late, or that
/// the kernel accepts from its hypervisor. A kernel must not start the engine a second time.
///
/// Memory that the boot map lists as reserved is filled with the contents of free memory and
/// [freed](hotmem::Frames::fill_and_free_raw). Memory that the boot map does not list is announced,
/// added and put online for the kernel, in whole pageblocks of 2 MiB. Returns the frames that can be
/// allocated now.
///
/// # Safety
/// `range` is RAM that nobody uses: no frame of it was allocated from the instance, and none holds
/// metadata of the engine. It can be mapped.
///
/// # Errors
/// [`LateMemoryError`]. Memory that the boot map does not list is then unknown again.
pub unsafe fn add_late_memory<P: Platform, M: Map>(
    hotplug: &mut Hotplug<'_, P, M>,
    range: PfnRange,
    hooks: &mut dyn Hooks,
) -> Result<PfnRange, LateMemoryError> {
    let (run, state) = hotplug.state_at(range.start(), range.end());
    if state != State::Unknown || !run.covers(range) {
        // SAFETY: the caller promises that nobody uses the memory.
        let freed = unsafe { hotplug.frames().fill_and_free_raw(range) };
        return freed.map(|()| range).map_err(LateMemoryError::Range);
    }
    let pageblocks = range.align_inward(PAGEBLOCK_FRAMES as u64);
    if pageblocks.is_empty() {
        return Ok(pageblocks);
    }
    let region = hotplug.announce(pageblocks).map_err(LateMemoryError::Announce)?;
    if let Err(error) = add_and_online(hotplug, pageblocks, hooks) {
        let _ = hotplug.withdraw(region).or_record_violation();
        return Err(error);
    }
    Ok(pageblocks)
}

/// Adds announced memory and puts it online. If that fails, the memory is absent again.
fn add_and_online<P: Platform, M: Map>(
    hotplug: &mut Hotplug<'_, P, M>,
    pageblocks: PfnRange,
    hooks: &mut dyn Hooks,
) -> Result<(), LateMemoryError> {
    hotplug.add(pageblocks).map_err(LateMemoryError::Add)?;
    let online = hotplug.online(pageblocks, OnlineType::Kernel, hooks);
    online.map_err(|error| {
        let _ = hotplug.remove(pageblocks).or_record_violation();
        LateMemoryError::Range(error)
    })
}

impl fmt::Display for LateMemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LateMemoryError::Range(error) => error.fmt(f),
            LateMemoryError::Announce(error) => error.fmt(f),
            LateMemoryError::Add(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for LateMemoryError {}
