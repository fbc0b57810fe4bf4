//! Holds the frame allocator, the heap and the control path, and starts the engine with boot
//! memory.

use crate::{AllocError, AllocResult};
use ax_sync::RawIrqSaveMutex;
use core::alloc::Layout;
use core::mem::take;
use core::ptr::{NonNull, without_provenance};
use core::sync::atomic::{AtomicU64, Ordering};
use hotmem::geometry::FRAME_SIZE;
use hotmem::{
    AllocRequest, BootMap, Bytes, Frames, Hotplug, NoHooks, Pfn, PfnRange, Platform, ZonePart,
};
use hotmem_heap::Heap;
use hotmem_port::lock_api::Mutex;
use hotmem_port::{AllocRetry, BootRanges, LateMapping, LinearMap, add_late_memory};
use spin::Once;

type Mapping = LateMapping<'static, Cpus, RawIrqSaveMutex>;
/// The type of the control path.
pub type ControlPath = Hotplug<'static, Cpus, &'static Mapping>;

/// The frame allocator.
pub static FRAMES: Frames<Cpus> = Frames::new(Cpus);
/// The control path, which is set at the first allocation. Its lock disables interrupts, which is
/// possible only because the mapper flushes no TLBs of other CPUs: a kernel that does needs a lock
/// that keeps interrupts on, or two CPUs wait for each other.
pub static HOTPLUG: Mutex<RawIrqSaveMutex, Option<ControlPath>> = Mutex::new(None);
/// Free boot memory, until the engine is started with it.
static BOOT_MEMORY: Mutex<RawIrqSaveMutex, BootRanges<32>> = Mutex::new(BootRanges::new());
/// The number of wrong frees: of what is not allocated, or of another kind than was allocated.
static REFUSED_FREES: AtomicU64 = AtomicU64::new(0);
/// What needs the base of the linear map, which only running code can find.
static LINEAR: Once<Linear> = Once::new();

struct Linear {
    map: LinearMap,
    mapping: Mapping,
    heap: Heap<'static, Cpus, RawIrqSaveMutex>,
}

/// A platform with ArceOS's CPU numbers.
#[derive(Debug)]
pub struct Cpus;

impl Platform for Cpus {
    /// So that the number of used pages does not require a walk over all memory.
    const COUNTS_ALLOCATED: bool = true;

    #[inline]
    fn cpu(&self) -> usize {
        // SAFETY: the areas of CPUs stay mapped. If the thread migrates meanwhile, the number is
        // that of another CPU, which is allowed.
        unsafe { ax_percpu::with_cpu_pin(|pin| ax_percpu::current_cpu_index(pin).as_usize()) }
            .unwrap_or(0)
    }
}

/// Returns the heap.
///
/// # Panics
/// Panics if no memory was added yet.
pub fn heap() -> &'static Heap<'static, Cpus, RawIrqSaveMutex> {
    &LINEAR.get().expect("memory was added").heap
}

/// Returns the mapping.
///
/// # Panics
/// Panics if no memory was added yet.
pub fn mapping() -> &'static Mapping {
    &LINEAR.get().expect("memory was added").mapping
}

/// Returns whether memory was added.
pub(crate) fn has_memory() -> bool {
    LINEAR.get().is_some()
}

/// Adds a range of free memory, at boot or later. `start` is an address in the linear map.
pub(crate) fn add_memory(start: usize, size: usize) -> AllocResult {
    let physical = ax_plat::mem::virt_to_phys(start.into()).as_usize();
    let end = physical.checked_add(size).ok_or(AllocError::InvalidParam)?;
    LINEAR.call_once(|| {
        let map = LinearMap::at_address(start.wrapping_sub(physical));
        // SAFETY: ArceOS's boot code maps free memory at this base, and ArceOS adds only free
        // memory.
        let mapping = unsafe { LateMapping::new(&FRAMES, map, PfnRange::ALL) };
        Linear { map, mapping, heap: Heap::new(&FRAMES, map) }
    });
    let range = physical as u64..end as u64;
    if let Some(hotplug) = &mut *HOTPLUG.lock() {
        let range = PfnRange::from_bytes(range.start, Bytes(size as u64));
        let range = range.map_err(|_| AllocError::InvalidParam)?;
        // SAFETY: ArceOS adds only free memory, all of which the linear map maps.
        let added = unsafe { add_late_memory(hotplug, range, &mut NoHooks) }?;
        // A range without a whole pageblock cannot be used.
        return if added.is_empty() { Err(AllocError::InvalidParam) } else { Ok(()) };
    }
    let mut ranges = BOOT_MEMORY.lock();
    let overlaps = |other: &hotmem::BootRange| {
        other.start < range.end && range.start < other.start + other.len.0
    };
    if ranges.as_slice().iter().any(overlaps) {
        return Err(AllocError::MemoryOverlap);
    }
    ranges.add(range).map_err(|_| AllocError::NoMemory)
}

/// Starts the engine with the free boot memory. Returns false if it was started before.
#[cold]
fn boot() -> bool {
    let ram = take(&mut *BOOT_MEMORY.lock());
    if ram.is_empty() {
        return false;
    }
    let map = BootMap::from(ram.as_slice());
    // SAFETY: ArceOS has added only free memory, all of which the linear map maps. ArceOS boots on
    // one CPU, so the engine is started once.
    let hotplug = unsafe { Hotplug::bootstrap(&FRAMES, mapping(), map) };
    *HOTPLUG.lock() = Some(hotplug.expect("the engine accepts the memory that ArceOS has found"));
    true
}

pub(crate) fn alloc(layout: Layout) -> AllocResult<NonNull<u8>> {
    let heap = &LINEAR.get().ok_or(AllocError::NotInitialized)?.heap;
    let object = heap.alloc(layout).or_else(|| if boot() { heap.alloc(layout) } else { None });
    object.ok_or(AllocError::NoMemory)
}

/// Frees an object.
///
/// # Safety
/// As for [`Heap::free`].
pub(crate) unsafe fn free(object: NonNull<u8>, layout: Layout) {
    // SAFETY: the caller keeps the promises of `Heap::free`.
    unsafe { heap().free(object, layout) };
}

/// Allocates frames. Returns their virtual address.
pub(crate) fn alloc_frames(request: AllocRequest) -> AllocResult<usize> {
    let linear = LINEAR.get().ok_or(AllocError::NotInitialized)?;
    // The first allocation finds no memory, because the engine is not started yet.
    let boot_and_retry = |error| if boot() { FRAMES.alloc_retry(request) } else { Err(error) };
    let frames = FRAMES.alloc_retry(request).or_else(boot_and_retry)?;
    Ok(linear.map.pointer(frames.into_raw().start()).addr())
}

pub(crate) fn frame_at(start: usize) -> Option<Pfn> {
    LINEAR.get()?.map.frame(without_provenance(start))
}

/// Takes a page table for memory that the engine adds. Returns its virtual address.
pub(crate) fn take_table() -> Option<usize> {
    let linear = LINEAR.get()?;
    Some(linear.map.pointer(linear.mapping.take_table()?).addr())
}

/// Frees pages. Returns false, and changes nothing, if they are not allocated.
pub(crate) fn free_frames(start: usize, pages: usize) -> bool {
    let bytes = pages.checked_mul(FRAME_SIZE as usize);
    let frames = LINEAR.get().zip(bytes).and_then(|(linear, bytes)| {
        let start = without_provenance::<u8>(start);
        linear.map.frames(start, bytes).filter(|_| start.addr().is_multiple_of(FRAME_SIZE as usize))
    });
    // SAFETY: ArceOS frees only pages that it has allocated. ArceOS's interface requires this,
    // although `dealloc_pages` is not an unsafe function.
    frames.is_some_and(|frames| unsafe { FRAMES.free_raw(frames) }.is_ok())
}

/// Counts a wrong free, or panics with debug assertions.
pub(crate) fn check_free(is_right: bool) {
    if !is_right {
        // Relaxed: a statistic.
        REFUSED_FREES.fetch_add(1, Ordering::Relaxed);
        debug_assert!(false, "what ArceOS frees is not allocated, or is of another kind");
    }
}

/// Returns the number of wrong frees: of what is not allocated, which were refused, and those of another
/// kind than was allocated.
pub fn refused_frees() -> u64 {
    // Relaxed: a statistic.
    REFUSED_FREES.load(Ordering::Relaxed)
}

pub(crate) fn used_frames() -> usize {
    FRAMES.allocated_frames().expect("`Cpus` counts allocated frames") as usize
}

pub(crate) fn online_frames() -> usize {
    let hotplug = HOTPLUG.lock();
    let Some(hotplug) = &*hotplug else { return 0 };
    let zones = hotplug.nodes().flat_map(|node| ZonePart::ALL.map(|part| hotplug.zone(node, part)));
    zones.map(|zone| zone.present as usize).sum()
}
