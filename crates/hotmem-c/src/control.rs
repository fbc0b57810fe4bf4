//! The control path: announces memory, adds it, puts it online and removes it.
//!
//! The caller's lock protects all calls here, and those that step a device. A call that finds
//! another one in progress returns HOTMEM_EBUSY.

use crate::error::{
    Error, HOTMEM_EBUSY, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ENOENT, code, not_gone,
};
use crate::machine::{Running, hotmem, machine};
use ::hotmem::geometry::PAGEBLOCK_FRAMES;
use ::hotmem::{
    Announce, Blocker, Budget, Bytes, Known, NodeId, OnlineType, PfnRange, Progress, Shrink, State,
    Why,
};

/// Puts the memory online in the zone that the policy chooses.
pub const HOTMEM_ONLINE_DEFAULT: u32 = 0;
/// Online for any allocation.
pub const HOTMEM_ONLINE_KERNEL: u32 = 1;
/// Puts the memory online for movable allocations, so that it can be removed again.
pub const HOTMEM_ONLINE_MOVABLE: u32 = 2;
/// Leaves the memory offline.
pub const HOTMEM_ONLINE_NOT: u32 = 3;

/// Frames that the kernel cannot move.
pub const HOTMEM_WHY_UNMOVABLE: u32 = 1;
/// Frames that the kernel could not move now.
pub const HOTMEM_WHY_RETRY: u32 = 2;
/// The engine's metadata, or descriptors of memory that stays.
pub const HOTMEM_WHY_METADATA: u32 = 3;
/// An allocation or a free is in progress, or another request has the memory.
pub const HOTMEM_WHY_BUSY: u32 = 4;
/// The memory is being reported to the host.
pub const HOTMEM_WHY_REPORTING: u32 = 5;
/// A hook refused.
pub const HOTMEM_WHY_VETO: u32 = 6;
/// There is not enough free memory elsewhere for the frames in use.
pub const HOTMEM_WHY_NOT_ENOUGH_FREE: u32 = 7;
/// The memory is not online.
pub const HOTMEM_WHY_NOT_ONLINE: u32 = 8;

/// Not announced.
pub const HOTMEM_STATE_UNKNOWN: i32 = 0;
/// Announced, and not present.
pub const HOTMEM_STATE_ABSENT: i32 = 1;
/// Present, and not given to the allocator.
pub const HOTMEM_STATE_OFFLINE: i32 = 2;
/// Online for any allocation.
pub const HOTMEM_STATE_ONLINE: i32 = 3;
/// Online for movable allocations only.
pub const HOTMEM_STATE_MOVABLE: i32 = 4;
/// Owned by a device.
pub const HOTMEM_STATE_DEVICE: i32 = 5;

/// The progress of a removal.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_removal {
    /// Bytes that were removed.
    pub removed: u64,
    /// The physical address of the first memory that could not be removed, if some is left.
    pub paddr: u64,
    /// The length of that memory in bytes.
    pub len: u64,
    /// The reason, one of HOTMEM_WHY_*, or 0.
    pub why: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

pub(crate) fn range(paddr: u64, len: u64) -> Result<PfnRange, Error> {
    Ok(PfnRange::from_bytes(paddr, Bytes(len))?)
}

pub(crate) fn online_type(number: u32) -> Result<OnlineType, Error> {
    match number {
        HOTMEM_ONLINE_DEFAULT => Ok(OnlineType::Online),
        HOTMEM_ONLINE_KERNEL => Ok(OnlineType::Kernel),
        HOTMEM_ONLINE_MOVABLE => Ok(OnlineType::Movable),
        HOTMEM_ONLINE_NOT => Ok(OnlineType::Offline),
        _ => Err(Error(HOTMEM_EINVAL)),
    }
}

/// Runs `step` with exclusive access to the control path, and returns the code of its result.
///
/// # Safety
/// As for [`machine`].
unsafe fn control(h: *const hotmem, step: impl FnOnce(&mut Running) -> Result<(), Error>) -> i32 {
    let run = || {
        // SAFETY: by the caller's promise.
        let mut entered = unsafe { machine(h) }?.enter()?;
        step(entered.parts()?)
    };
    code(run())
}

/// Announces that memory of this NUMA node may be plugged in the range, which consists of whole
/// pageblocks (2 MiB).
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_ENOMEM, HOTMEM_EBUSY.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_announce(h: *mut hotmem, paddr: u64, len: u64, node: u32) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        control(h, |running| {
            let what = Announce { node: NodeId(node), ..range(paddr, len)?.into() };
            running.hotplug.announce(what)?;
            Ok(())
        })
    }
}

/// Withdraws the announcement of exactly this range, in which nothing is present.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_ENOENT: it was not announced; HOTMEM_EBUSY:
/// some of it is present.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_withdraw(h: *mut hotmem, paddr: u64, len: u64) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        control(h, |Running { hotplug, .. }| {
            let wanted = range(paddr, len)?;
            let mut regions = hotplug.regions();
            let region = regions.find(|&(_, region)| region == wanted).map(|(id, _)| id);
            drop(regions);
            let region = region.ok_or(Error(HOTMEM_ENOENT))?;
            hotplug.withdraw(region).map_err(not_gone)
        })
    }
}

/// Adds memory that was plugged: maps it, and leaves it offline. The range consists of whole
/// pageblocks of one announcement.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_ENOMEM, HOTMEM_EBUSY;
/// HOTMEM_ENOENT: it was not announced.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. A device has put memory there, which nobody else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_add(h: *mut hotmem, paddr: u64, len: u64) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe { control(h, |running| Ok(running.hotplug.add(range(paddr, len)?)?)) }
}

/// Puts all of the range online for `kind`, one of HOTMEM_ONLINE_*, or nothing of it.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_EBUSY; HOTMEM_ENOENT: some
/// of it is not present; HOTMEM_EACCES: `going_online` refused.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_online(h: *mut hotmem, paddr: u64, len: u64, kind: u32) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        control(h, |Running { hotplug, hooks }| {
            Ok(hotplug.online(range(paddr, len)?, online_type(kind)?, hooks)?)
        })
    }
}

/// Removes as much of the range as can be removed, pageblock by pageblock and the highest first,
/// whether it is online or not. `removal` is NULL, or receives the progress.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE; HOTMEM_EBUSY: some of it could not be removed, see
/// `removal`, or the control path was entered twice.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`; `removal` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_remove(
    h: *mut hotmem,
    paddr: u64,
    len: u64,
    removal: *mut hotmem_removal,
) -> i32 {
    let mut result = hotmem_removal::default();
    // SAFETY: by the caller's promise. The same holds below.
    let code = unsafe {
        control(h, |running| {
            let range = range(paddr, len)?;
            if range.is_empty() || !range.is_aligned(PAGEBLOCK_FRAMES as u64) {
                return Err(Error(HOTMEM_EINVAL));
            }
            let blocker = remove_online(running, range, &mut result.removed);
            // Memory that was offline before this request comes last, because it may hold
            // descriptors of the online memory.
            let offline = remove_offline(running, range, &mut result.removed);
            let blocker = blocker.or(offline);
            let Some(Blocker { range, why }) = blocker else { return Ok(()) };
            (result.paddr, result.len) = (range.start().phys_addr(), range.bytes().0);
            result.why = why_number(why);
            Err(Error(HOTMEM_EBUSY))
        })
    };
    // SAFETY: see above.
    if let Some(removal) = unsafe { removal.as_mut() } {
        *removal = result;
    }
    code
}

/// Removes the online memory in `range` as far as possible. Adds the bytes to `removed`. Returns
/// the first blocker.
fn remove_online(running: &mut Running, range: PfnRange, removed: &mut u64) -> Option<Blocker> {
    let Running { hotplug, hooks } = running;
    let mut first = None;
    let mut rest = range;
    while !rest.is_empty() {
        let (run, state) = hotplug.state_at(rest.start(), rest.end());
        if run.is_empty() {
            break;
        }
        rest = rest.split_at(run.end()).1;
        if !matches!(state, State::Online | State::OnlineMovable) {
            continue;
        }
        let mut shrink = Shrink::new(run);
        loop {
            match shrink.poll(hotplug, hooks, Budget::UNLIMITED) {
                Progress::Ready(removal) => {
                    *removed += removal.range().bytes().0;
                    // The token belongs to this machine, so the commit cannot fail.
                    hotplug.commit_remove(removal).known();
                }
                Progress::Working => {}
                ended => {
                    first = first.or(ended.pending());
                    break;
                }
            }
        }
    }
    first
}

/// Removes the offline memory in `range` as far as possible. Adds the bytes to `removed`. Returns
/// the first part that could not be removed.
fn remove_offline(
    Running { hotplug, .. }: &mut Running,
    range: PfnRange,
    removed: &mut u64,
) -> Option<Blocker> {
    let mut first = None;
    let mut rest = range;
    while !rest.is_empty() {
        let (run, state) = hotplug.state_at(rest.start(), rest.end());
        if run.is_empty() {
            break;
        }
        rest = rest.split_at(run.end()).1;
        if state == State::Offline {
            match hotplug.remove(run) {
                Ok(()) => *removed += run.bytes().0,
                Err(_) => first = first.or(Some(Blocker { range: run, why: Why::Metadata })),
            }
        }
    }
    first
}

fn why_number(why: Why) -> u32 {
    match why {
        Why::Unmovable(_) | Why::Pinned => HOTMEM_WHY_UNMOVABLE,
        Why::Allocated | Why::Retry => HOTMEM_WHY_RETRY,
        Why::Metadata => HOTMEM_WHY_METADATA,
        Why::Busy | Why::HeldByAnother => HOTMEM_WHY_BUSY,
        Why::Reporting => HOTMEM_WHY_REPORTING,
        Why::Veto(_) => HOTMEM_WHY_VETO,
        Why::NotEnoughFree { .. } => HOTMEM_WHY_NOT_ENOUGH_FREE,
        Why::NotOnline | Why::Foreign => HOTMEM_WHY_NOT_ONLINE,
    }
}

/// Returns the state (HOTMEM_STATE_*) of the memory at the start of the range, and stores in `same`
/// how many bytes of the range, from its start on, have this state.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EBUSY.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`; `same` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_state(h: *mut hotmem, paddr: u64, len: u64, same: *mut u64) -> i32 {
    let mut state = HOTMEM_STATE_UNKNOWN;
    // SAFETY: by the caller's promise. The same holds below.
    let code = unsafe {
        control(h, |Running { hotplug, .. }| {
            let range = range(paddr, len)?;
            // SAFETY: see above.
            let same = same.as_mut().ok_or(Error(HOTMEM_EFAULT))?;
            if !range.is_aligned(PAGEBLOCK_FRAMES as u64) {
                return Err(Error(HOTMEM_EINVAL));
            }
            let (run, found) = hotplug.state_at(range.start(), range.end());
            *same = run.bytes().0;
            state = match found {
                State::Unknown => HOTMEM_STATE_UNKNOWN,
                State::Absent => HOTMEM_STATE_ABSENT,
                State::Offline => HOTMEM_STATE_OFFLINE,
                State::Online => HOTMEM_STATE_ONLINE,
                State::OnlineMovable => HOTMEM_STATE_MOVABLE,
                State::Device => HOTMEM_STATE_DEVICE,
            };
            Ok(())
        })
    };
    if code == 0 { state } else { code }
}
