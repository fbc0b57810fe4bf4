//! Boots a kernel that registers its memory range by range and numbers its CPUs after boot.

use hotmem::{AllocRequest, AlwaysMapped, BootMap, Frames, Hotplug, PfnRange, Platform};
use hotmem_port::{AllocOrNone, BootRanges, ConfigurablePlatform, LinearMap};
use hotmem_testkit::Memory;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    // The kernel adds the ranges of the firmware's memory map, in the firmware's order.
    let mut ram = BootRanges::<4>::new();
    ram.add(0x60_0000..0x400_0000)?;
    ram.add(0x10_0000..0x20_0000)?;
    ram.add(0x20_0000..0x60_0000)?;
    println!("{} range of boot memory", ram.as_slice().len());

    let memory = Memory::new(16384);
    let linear = LinearMap::new(memory.start());
    let frames = Frames::new(ConfigurablePlatform::new());
    // SAFETY: the memory of the test is mapped at this base, and nothing else uses it.
    let mapping = unsafe { AlwaysMapped::new(linear.base(), PfnRange::ALL) };
    let map = BootMap::from(ram.as_slice());
    // SAFETY: the RAM of `map` lies within the memory of the test, and nothing else uses it.
    let _hotplug = unsafe { Hotplug::bootstrap(&frames, mapping, map)? };

    frames.platform().set_cpu(|| 1);
    println!("this is CPU {}", frames.platform().cpu());
    let page = frames.alloc_or_none(AllocRequest::frames(1)).ok_or("no memory")?;
    let address = linear.pointer(page.range().start());
    println!("{} is mapped at offset {:#x}", page.range(), address.addr() - linear.base().addr());
    Ok(())
}

#[test]
fn a_configurable_platform_boots() -> Result<(), Box<dyn Error>> {
    main()
}
