//! Step 7: pages that are zeroed when they are first used. The DIMM of step 4 is zero when it is
//! added, so its pages need no zeroing until they are used again.
#![no_std]
#![no_main]

#[path = "../step_4_mapping/mapping.rs"]
mod mapping;

use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocError, AllocRequest, Allocation, BootMap, BootRange, Contents};
use hotmem::{Frames, Hotplug, NoHooks, OneCpu, OnlineType, PfnRange};
use hotmem_embedding::{Boot, PrintedError, direct_map, kernel, println};
use mapping::KernelMapping;
use spin::Mutex;

kernel!(main);

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

/// The number of page faults of a process.
const FAULTS: usize = 1000;

/// The pages of the process, in a `static` because they do not fit on this kernel's stack.
static PAGES: Mutex<[PfnRange; FAULTS]> = Mutex::new([PfnRange::EMPTY; FAULTS]);

fn main(boot: &Boot) -> Result<(), PrintedError> {
    let ram = boot.mapped_ram().map(BootRange::from);
    let reserved = boot.in_use().map(BootRange::from);
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    let mapping = KernelMapping::take_over_boot_tables()?;
    // SAFETY: the boot code has mapped all RAM of the boot map. What of it is in use is reserved: the
    // image, with the stack and the page tables, and the memory of the firmware.
    let mut hotplug = unsafe { Hotplug::bootstrap(&FRAMES, mapping, map) }?;
    for ram in boot.unmapped_ram() {
        mapping::add_boot_ram(&mut hotplug, ram)?;
    }

    // SAFETY: this kernel trusts its host.
    unsafe { FRAMES.keep_zero_marks() };
    if boot.dimm.is_empty() {
        return Err("the machine has no DIMM".into());
    }
    let dimm = boot.dimm.clone().try_into()?;
    hotplug.announce(dimm)?;
    // QEMU's DIMMs are zero. Without this knowledge, call `hotplug.add`.
    let addition = hotplug.prepare_add(dimm)?;
    hotplug.commit_add(addition.zeroed());
    hotplug.online(dimm, OnlineType::Movable, &mut NoHooks)?;

    let first = run_process()?;
    let second = run_process()?;
    println!("pages that the kernel had to zero: {first} of {FAULTS}, then {second}");
    // One call does the same for memory of any size, if nobody counts.
    let buffer = FRAMES.alloc_zeroed(AllocRequest::order(9).movable())?;
    if !is_zero(buffer.range()) {
        return Err("the buffer is not zero".into());
    }
    // The engine writes its bitmaps to the first pageblock that it divides, and the second process gets
    // the pages of the first one.
    match first <= PAGEBLOCK_FRAMES && second > first {
        true => Ok(()),
        false => Err("the kernel does not know which pages are zero".into()),
    }
}

/// Answers the page faults of a process, which writes to its pages and then ends. Returns how many
/// pages the kernel had to zero.
fn run_process() -> Result<usize, PrintedError> {
    let mut pages = PAGES.lock();
    let mut zeroed = 0;
    for page in pages.iter_mut() {
        let (frame, was_zeroed) = zero_page()?;
        if !is_zero(frame.range()) {
            return Err("a process can read old data".into());
        }
        zeroed += usize::from(was_zeroed);
        // SAFETY: the frame was allocated above.
        unsafe { direct_map(frame.range().start().phys_addr()).write_bytes(1, 4096) };
        *page = frame.into_raw();
    }
    for page in pages.iter() {
        // SAFETY: the process has ended, so nothing uses its pages.
        unsafe { FRAMES.free_raw(*page) }?;
    }
    Ok(zeroed)
}

/// Returns a page of zeroes for a page fault, and whether the kernel had to zero it.
fn zero_page() -> Result<(Allocation<'static, OneCpu>, bool), AllocError> {
    let (page, contents) = FRAMES.alloc_with_contents(AllocRequest::frames(1).movable())?;
    let is_known = contents == Contents::Filled(0);
    if !is_known {
        // SAFETY: the page was allocated above.
        unsafe { direct_map(page.range().start().phys_addr()).write_bytes(0, 4096) };
    }
    Ok((page, !is_known))
}

/// Reads all of `range`.
fn is_zero(range: PfnRange) -> bool {
    let start = direct_map(range.start().phys_addr()).cast::<u64>();
    // SAFETY: the caller has allocated the memory.
    (0..range.bytes().0 as usize / 8).all(|index| unsafe { start.add(index).read() } == 0)
}
