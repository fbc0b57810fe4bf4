//! Step 3: removal of memory that is in use. The kernel finds its pages only by a table, so it can
//! move them when the engine calls `Hooks::migrate`.
#![no_std]
#![no_main]

use hotmem::{AllocRequest, Migration, OneCpu, OnlineType, PfnRange, Progress, Shrink};
use hotmem::{Allocation, AlwaysMapped, BootMap, BootRange, Budget, Frames, Hooks, Hotplug};
use hotmem_embedding::{BOOT_MAPPING, Boot, PrintedError, direct_map, kernel, println};

kernel!(main);

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

const MIB: u64 = 1 << 20;

/// The table of the kernel's pages. The kernel looks up a page in this table for each access.
struct Pages {
    pages: [Option<Allocation<'static, OneCpu>>; 64],
    moved_pages: usize,
}

impl Hooks for Pages {
    fn migrate(&mut self, used: PfnRange) -> Migration {
        let mut moved = 0;
        for page in self.pages.iter_mut().flatten() {
            if !used.covers(page.range()) {
                continue;
            }
            // The engine has isolated the memory to be removed, so the new page lies in other
            // memory.
            let Ok(new) = FRAMES.alloc(AllocRequest::frames(1).movable()) else {
                return Migration::Retry;
            };
            let [from, to] =
                [&*page, &new].map(|page| direct_map(page.range().start().phys_addr()));
            // SAFETY: the kernel has allocated both pages, they differ, and no other code runs.
            unsafe { to.copy_from_nonoverlapping(from, 4096) };
            *page = new;
            moved += 1;
        }
        self.moved_pages += moved;
        if moved == 0 { Migration::Unmovable("not in the table") } else { Migration::Moved }
    }
}

fn main(boot: &Boot) -> Result<(), PrintedError> {
    let end = BOOT_MAPPING.start + 128 * MIB;
    let ram = boot.ram_below(end).map(BootRange::from);
    let reserved = boot.in_use().map(BootRange::from);
    let map = BootMap { reserved: &reserved, ..BootMap::from(&ram) };
    // SAFETY: the boot code has mapped a GiB of memory in the direct map. What of it is in use is
    // reserved: the image, with the stack and the page tables, and the memory of the firmware.
    let mut hotplug = unsafe {
        let mapping = AlwaysMapped::new(direct_map(0), BOOT_MAPPING.try_into()?);
        Hotplug::bootstrap(&FRAMES, mapping, map)?
    };
    let mut pages = Pages { pages: [const { None }; 64], moved_pages: 0 };
    let plugged = (end..end + 64 * MIB).try_into()?;
    hotplug.announce(plugged)?;
    hotplug.add(plugged)?;
    hotplug.online(plugged, OnlineType::Movable, &mut pages)?;

    for (number, page) in (0_u8..).zip(&mut pages.pages) {
        let page = page.insert(FRAMES.alloc(AllocRequest::frames(1).movable())?);
        // SAFETY: the kernel has allocated the page.
        unsafe { direct_map(page.range().start().phys_addr()).write_bytes(number, 4096) };
    }

    let mut shrink = Shrink::new(plugged);
    loop {
        // The budget of 4 MiB keeps each call short. Between two calls a kernel can release its
        // lock.
        match shrink.poll(&mut hotplug, &mut pages, Budget { pageblocks: 2 }) {
            Progress::Ready(removal) => hotplug.commit_remove(removal),
            Progress::Working => {}
            Progress::Pending(blocker) => return Err(blocker.into()),
            Progress::Idle => break,
        }
    }
    println!("{plugged} was removed, {} pages were moved", pages.moved_pages);
    for (number, page) in (0_u8..).zip(pages.pages.iter().flatten()) {
        // SAFETY: the kernel has allocated the page.
        let byte = unsafe { direct_map(page.range().start().phys_addr()).read() };
        if byte != number || plugged.covers(page.range()) {
            return Err("a page lost its contents, or was not moved".into());
        }
    }
    Ok(())
}
