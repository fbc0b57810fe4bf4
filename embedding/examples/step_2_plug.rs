//! Step 2: memory after boot, without a device. 64 MiB that the boot map
//! lacks are added, used and removed again.
#![no_std]
#![no_main]

use hotmem::{AllocRequest, OnlineType, Progress, Shrink, State};
use hotmem::{AlwaysMapped, BootMap, BootRange, Budget, Frames, Hotplug, NoHooks, OneCpu};
use hotmem_embedding::{BOOT_MAPPING, Boot, PrintedError, direct_map, kernel, println};
use spin::Mutex;

kernel!(main);

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);
/// The control path, behind any kind of lock. No interrupt handler takes it.
static HOTPLUG: Mutex<Option<Hotplug<'static, OneCpu>>> = Mutex::new(None);

const MIB: u64 = 1 << 20;

fn main(boot: &Boot) -> Result<(), PrintedError> {
    // The boot map must not contain memory that is added later.
    let end = BOOT_MAPPING.start + 128 * MIB;
    let ram = boot.ram_below(end).map(BootRange::from);
    let reserved = boot.in_use().map(BootRange::from);
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    // SAFETY: the boot code has mapped a GiB of memory in the direct map. What of it is in use is
    // reserved: the image, with the stack and the page tables, and the memory of the firmware.
    let hotplug = unsafe {
        let mapping = AlwaysMapped::new(direct_map(0), BOOT_MAPPING.try_into()?);
        Hotplug::bootstrap(&FRAMES, mapping, map)?
    };
    *HOTPLUG.lock() = Some(hotplug);

    let mut lock = HOTPLUG.lock();
    let hotplug = lock.as_mut().ok_or("the engine was not started")?;
    let plugged = (end..end + 64 * MIB).try_into()?;
    hotplug.announce(plugged)?;
    hotplug.add(plugged)?;
    hotplug.online(plugged, OnlineType::Movable, &mut NoHooks)?;
    println!("online: {} MiB", FRAMES.counts().online >> 8);

    let page = FRAMES.alloc(AllocRequest::frames(1).movable())?;
    println!("a page in the plugged memory: {}", page.range());
    // SAFETY: this function has allocated the page.
    unsafe { direct_map(page.range().start().phys_addr()).write_bytes(7, 4096) };

    // While the page is in use, its 2 MiB are not removed, and `Blocker` names the page.
    println!("with a page in use: {}", shrink(hotplug, plugged)?);
    drop(page);
    println!("without: {}", shrink(hotplug, plugged)?);
    let (range, state) = hotplug.state_at(plugged.start(), plugged.end());
    if (range, state) != (plugged, State::Absent) {
        return Err("some of the plugged memory is still present".into());
    }
    Ok(())
}

/// Removes as much of `range` as possible. Returns the removed size, and what blocks the rest.
fn shrink(
    hotplug: &mut Hotplug<'static, OneCpu>,
    range: hotmem::PfnRange,
) -> Result<Removed, PrintedError> {
    let mut removed = Removed { mib: 0, blocker: None };
    let mut shrink = Shrink::new(range);
    loop {
        match shrink.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
            Progress::Ready(removal) => {
                removed.mib += removal.range().bytes().0 / MIB;
                // Here a kernel tells its hypervisor that the memory is unused.
                hotplug.commit_remove(removal);
            }
            Progress::Working => {}
            Progress::Pending(blocker) => {
                return Ok(Removed { blocker: Some(blocker), ..removed });
            }
            Progress::Idle => return Ok(removed),
        }
    }
}

struct Removed {
    mib: u64,
    blocker: Option<hotmem::Blocker>,
}

impl core::fmt::Display for Removed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} MiB removed", self.mib)?;
        self.blocker.map_or(Ok(()), |blocker| write!(f, ", then blocked: {blocker}"))
    }
}
