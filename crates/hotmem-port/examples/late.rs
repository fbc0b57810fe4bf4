//! Boots a kernel that registers its memory range by range and numbers its CPUs after boot.

use hotmem::{AllocRequest, AlwaysMapped, BootMap, Frames, Hotplug, PfnRange, Platform};
use hotmem_port::{AllocRetry, BootRanges, ConfigurablePlatform, LinearMap};
use std::alloc::{Layout, alloc_zeroed};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    // The kernel adds the ranges of the firmware's memory map, in the firmware's order.
    let mut ram = BootRanges::<4>::new();
    ram.add(0x60_0000..0x400_0000)?;
    ram.add(0x10_0000..0x20_0000)?;
    ram.add(0x20_0000..0x60_0000)?;
    println!("{} range of boot memory", ram.as_slice().len());

    let layout = Layout::from_size_align(64 << 20, 4096)?;
    // SAFETY: the layout is not empty.
    let linear = LinearMap::new(unsafe { alloc_zeroed(layout) });
    let frames = Frames::new(ConfigurablePlatform::new());
    // SAFETY: 64 MiB are mapped at this base, and nothing else uses them.
    let mapping = unsafe { AlwaysMapped::new(linear.base(), PfnRange::ALL) };
    let map = BootMap::from(ram.as_slice());
    // SAFETY: the RAM of `map` lies within these 64 MiB, and nothing else uses it.
    let _hotplug = unsafe { Hotplug::bootstrap(&frames, mapping, map)? };

    frames.platform().set_cpu(|| 1);
    println!("this is CPU {}", frames.platform().cpu());
    let page = frames.alloc_retry(AllocRequest::frames(1))?;
    let address = linear.pointer(page.range().start());
    println!("{} is mapped at offset {:#x}", page.range(), address.addr() - linear.base().addr());
    Ok(())
}

#[test]
fn a_configurable_platform_boots() -> Result<(), Box<dyn Error>> {
    main()
}
