//! The control path: announces memory, adds it, puts it online and removes it.
//!
//! The caller's lock must keep the calls of the control path apart, including the steps of a
//! virtio-mem device. If it does not, a call that begins during another one returns HOTMEM_EBUSY.

use crate::error::{
    Error, HOTMEM_EBUSY, HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ENOENT, code, withdraw_error,
};
use crate::instance::{Running, hotmem, instance};
use ::hotmem::geometry::PAGEBLOCK_FRAMES;
use ::hotmem::{
    Announce, Blocker, BlockerKind, Budget, Bytes, NodeId, OnlineType, PfnRange, Progress,
    RangeError, RangeErrorKind, Shrink, State,
};

/// Puts the memory online in the zone that the policy chooses.
pub const HOTMEM_ONLINE_DEFAULT: u32 = 0;
/// Puts the memory online for any allocation.
pub const HOTMEM_ONLINE_KERNEL: u32 = 1;
/// Puts the memory online for movable allocations, so that it can be removed again.
pub const HOTMEM_ONLINE_MOVABLE: u32 = 2;
/// Leaves the memory offline.
pub const HOTMEM_ONLINE_NOT: u32 = 3;

/// The kernel cannot migrate the frames.
pub const HOTMEM_WHY_UNMOVABLE: u32 = 1;
/// The kernel could not migrate the frames now.
pub const HOTMEM_WHY_RETRY: u32 = 2;
/// The frames hold the engine's metadata, or descriptors of memory that is not removed.
pub const HOTMEM_WHY_METADATA: u32 = 3;
/// An allocation or a free is in progress, or another request has isolated the memory.
pub const HOTMEM_WHY_BUSY: u32 = 4;
/// The host is working on a report of the memory.
pub const HOTMEM_WHY_REPORTING: u32 = 5;
/// A hook refused.
pub const HOTMEM_WHY_VETO: u32 = 6;
/// There is not enough free memory elsewhere for the allocated frames.
pub const HOTMEM_WHY_NOT_ENOUGH_FREE: u32 = 7;
/// The memory is not online.
pub const HOTMEM_WHY_NOT_ONLINE: u32 = 8;
/// A poisoned frame is in use: the kernel must take it from its owner and free it.
pub const HOTMEM_WHY_POISONED: u32 = 9;
/// The memory is boot memory, which is never removed.
pub const HOTMEM_WHY_BOOT_MEMORY: u32 = 10;

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
/// Device memory: present, and owned by a device.
pub const HOTMEM_STATE_DEVICE: i32 = 5;
/// Present and offline, and held for a removal: it may be unmapped.
pub const HOTMEM_STATE_REMOVING: i32 = 6;

/// The progress of a removal.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct hotmem_removal {
    /// The number of bytes that were removed.
    pub removed: u64,
    /// If some memory could not be removed, the physical address of the first such range.
    pub paddr: u64,
    /// The length of that range in bytes.
    pub len: u64,
    /// The reason, one of HOTMEM_WHY_*. 0 if all memory was removed.
    pub why: u32,
    /// Reserved, 0.
    pub reserved: u32,
}

#[inline(never)]
pub(crate) fn range(paddr: u64, len: u64) -> Result<PfnRange, Error> {
    Ok(PfnRange::from_bytes(paddr, Bytes(len))?)
}

pub(crate) fn parse_online_type(number: u32) -> Result<OnlineType, Error> {
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
/// As for [`instance`].
#[inline(never)]
pub(crate) unsafe fn control(
    h: *const hotmem,
    step: &mut dyn FnMut(&mut Running) -> Result<(), Error>,
) -> i32 {
    let mut run = || {
        // SAFETY: the caller guarantees it.
        let mut access = unsafe { instance(h) }?.enter()?;
        step(access.running()?)
    };
    code(run())
}

/// Announces that memory of this NUMA node may be plugged in the range, which consists of whole
/// pageblocks (2 MiB). A section (128 MiB, aligned to its size) has one node. So a range that begins
/// or ends within a section is refused if memory of another node is announced or present in that
/// section.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_ENOMEM, HOTMEM_EBUSY.
/// HOTMEM_EXDEV: a section of the range is another node's.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_announce(h: *mut hotmem, paddr: u64, len: u64, node: u32) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe {
        control(h, &mut |running| {
            let announce = Announce { node: NodeId(node), ..range(paddr, len)?.into() };
            running.hotplug.announce(announce)?;
            Ok(())
        })
    }
}

/// Withdraws the announcement of exactly this range. No memory of the range may be present.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_ENOENT: the range was not announced.
/// HOTMEM_EBUSY: some memory of the range is present.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_withdraw(h: *mut hotmem, paddr: u64, len: u64) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe {
        control(h, &mut |Running { hotplug, .. }| {
            let requested = range(paddr, len)?;
            let mut regions = hotplug.regions();
            let region = regions.find(|&(_, region)| region == requested).map(|(id, _)| id);
            drop(regions);
            let region = region.ok_or(Error(HOTMEM_ENOENT))?;
            hotplug.withdraw(region).map_err(withdraw_error)
        })
    }
}

/// Adds memory that was plugged: maps it, and leaves it offline. The range consists of whole
/// pageblocks within one announced range.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_ENOMEM, HOTMEM_EBUSY.
/// HOTMEM_ENOENT: the range was not announced. HOTMEM_EXDEV: a section of the range has memory of
/// another node. HOTMEM_ENOSPC: the instance has memory of 256 other nodes.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. A device has plugged memory in the range, and no other code
/// uses this memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_add(h: *mut hotmem, paddr: u64, len: u64) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe { control(h, &mut |running| Ok(running.hotplug.add(range(paddr, len)?)?)) }
}

/// Puts the range online for `online_type`, one of HOTMEM_ONLINE_*. After an error no memory of the
/// range was put online.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EEXIST, HOTMEM_EBUSY. HOTMEM_ENOENT: some
/// memory of the range is not present. HOTMEM_EACCES: `hotmem_hooks.going_online` refused.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_online(
    h: *mut hotmem,
    paddr: u64,
    len: u64,
    online_type: u32,
) -> i32 {
    // SAFETY: the caller guarantees it.
    unsafe {
        control(h, &mut |Running { hotplug, hooks }| {
            Ok(hotplug.online(range(paddr, len)?, parse_online_type(online_type)?, hooks)?)
        })
    }
}

/// Removes as much memory of the range as possible, whether the memory is online or offline.
/// Removes online memory pageblock by pageblock, the highest first. If `removal` is not NULL,
/// stores the progress there.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE. HOTMEM_EBUSY: some memory could not be removed (see
/// `removal`), or another call of the control path is in progress.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `removal` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_remove(
    h: *mut hotmem,
    paddr: u64,
    len: u64,
    removal: *mut hotmem_removal,
) -> i32 {
    let mut result = hotmem_removal::default();
    // SAFETY: the caller guarantees it. The same holds below.
    let code = unsafe {
        control(h, &mut |running| {
            let range = range(paddr, len)?;
            if range.is_empty() || !range.is_aligned(PAGEBLOCK_FRAMES as u64) {
                return Err(Error(HOTMEM_EINVAL));
            }
            let blocker = remove(running, range, &mut result.removed);
            let Some(Blocker { range, kind }) = blocker else { return Ok(()) };
            (result.paddr, result.len) = (range.start().phys_addr(), range.bytes().0);
            result.why = why_number(kind);
            Err(Error(HOTMEM_EBUSY))
        })
    };
    // SAFETY: see above.
    if let Some(removal) = unsafe { removal.as_mut() } {
        *removal = result;
    }
    code
}

/// Removes as much memory of `range` as possible. Adds the number of bytes to `removed`. Returns
/// the first blocker.
fn remove(running: &mut Running, range: PfnRange, removed: &mut u64) -> Option<Blocker> {
    let mut first_blocker = None;
    let mut remaining = range;
    while !remaining.is_empty() {
        let (run, state) = running.hotplug.state_at(remaining.start(), remaining.end());
        if run.is_empty() {
            break;
        }
        remaining = remaining.split_at(run.end()).1;
        let blocker = match state {
            State::Online | State::OnlineMovable => remove_online(running, run, removed),
            State::Offline => remove_offline(running, run, removed),
            State::Removing => Some(Blocker { range: run, kind: BlockerKind::HeldByAnother }),
            State::Unknown | State::Absent | State::Device => None,
        };
        first_blocker = first_blocker.or(blocker);
    }
    first_blocker
}

/// Removes as much of `run`, which is online, as possible. Adds the number of bytes to `removed`.
/// Returns the first blocker.
fn remove_online(
    Running { hotplug, hooks }: &mut Running,
    run: PfnRange,
    removed: &mut u64,
) -> Option<Blocker> {
    let mut shrink = Shrink::new(run);
    loop {
        match shrink.poll(hotplug, hooks, Budget::UNLIMITED) {
            Progress::Ready(removal) => {
                *removed += removal.range().bytes().0;
                hotplug.commit_remove(removal);
            }
            Progress::Working => {}
            Progress::Pending(blocker) => return Some(blocker),
            Progress::Idle => return None,
        }
    }
}

/// Removes as much of `run`, which is offline, as possible. Adds the number of bytes to `removed`.
/// Returns the first blocker. The engine refuses memory that a device is unplugging, and memory that
/// holds descriptors of other memory.
fn remove_offline(
    Running { hotplug, .. }: &mut Running,
    run: PfnRange,
    removed: &mut u64,
) -> Option<Blocker> {
    let mut remove = |range: PfnRange| hotplug.remove(range).map(|()| *removed += range.bytes().0);
    let mut first_blocker = None;
    let mut remaining = run;
    while !remaining.is_empty()
        && let Err(RangeError { range: refused, kind }) = remove(remaining)
    {
        let kind = match kind {
            RangeErrorKind::Held => BlockerKind::HeldByAnother,
            RangeErrorKind::BootMemory => BlockerKind::BootMemory,
            _ => BlockerKind::Metadata,
        };
        first_blocker = first_blocker.or(Some(Blocker { range: refused, kind }));
        // The result is not needed: if the memory below is refused too, it stays offline.
        let _ = remove(remaining.split_at(refused.start()).0);
        remaining = remaining.split_at(refused.end()).1;
    }
    first_blocker
}

fn why_number(kind: BlockerKind) -> u32 {
    match kind {
        BlockerKind::Unmovable(_) | BlockerKind::Pinned => HOTMEM_WHY_UNMOVABLE,
        BlockerKind::Poisoned => HOTMEM_WHY_POISONED,
        BlockerKind::BootMemory => HOTMEM_WHY_BOOT_MEMORY,
        BlockerKind::Allocated | BlockerKind::Retry => HOTMEM_WHY_RETRY,
        BlockerKind::Metadata => HOTMEM_WHY_METADATA,
        BlockerKind::Busy | BlockerKind::HeldByAnother => HOTMEM_WHY_BUSY,
        BlockerKind::Reporting => HOTMEM_WHY_REPORTING,
        BlockerKind::Veto(_) => HOTMEM_WHY_VETO,
        BlockerKind::NotEnoughFree { .. } | BlockerKind::NoTables => HOTMEM_WHY_NOT_ENOUGH_FREE,
        BlockerKind::NotOnline | BlockerKind::Foreign => HOTMEM_WHY_NOT_ONLINE,
    }
}

/// Returns the state of the memory at the start of the range, one of HOTMEM_STATE_*. Stores in
/// `same_state_len` the number of bytes, from the start of the range on, that have this state.
///
/// # Errors
/// HOTMEM_EFAULT, HOTMEM_EINVAL, HOTMEM_ERANGE, HOTMEM_EBUSY.
///
/// # Safety
/// `h` is NULL or a `struct hotmem`. `same_state_len` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hotmem_state(
    h: *mut hotmem,
    paddr: u64,
    len: u64,
    same_state_len: *mut u64,
) -> i32 {
    let mut state = HOTMEM_STATE_UNKNOWN;
    // SAFETY: the caller guarantees it. The same holds below.
    let code = unsafe {
        control(h, &mut |Running { hotplug, .. }| {
            let range = range(paddr, len)?;
            // SAFETY: see above.
            let same_state_len = same_state_len.as_mut().ok_or(Error(HOTMEM_EFAULT))?;
            if !range.is_aligned(PAGEBLOCK_FRAMES as u64) {
                return Err(Error(HOTMEM_EINVAL));
            }
            let (run, found) = hotplug.state_at(range.start(), range.end());
            *same_state_len = run.bytes().0;
            state = match found {
                State::Unknown => HOTMEM_STATE_UNKNOWN,
                State::Absent => HOTMEM_STATE_ABSENT,
                State::Offline => HOTMEM_STATE_OFFLINE,
                State::Online => HOTMEM_STATE_ONLINE,
                State::OnlineMovable => HOTMEM_STATE_MOVABLE,
                State::Device => HOTMEM_STATE_DEVICE,
                State::Removing => HOTMEM_STATE_REMOVING,
            };
            Ok(())
        })
    };
    if code == 0 { state } else { code }
}
