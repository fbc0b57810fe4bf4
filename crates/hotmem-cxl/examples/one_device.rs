//! Reads a CEDT with one host bridge and one window, and plans the decoders for one device of 1 GiB.

use hotmem_cxl::cedt::{self, Restrictions};
use hotmem_cxl::plan::{Bridge, Device, Plan, Wish};
use hotmem_cxl::{Bytes, Decoders, Granularity, Pfn, PfnRange, Platform, Registers, Role};

fn table() -> Vec<u8> {
    let mut table = vec![0, 0, 32, 0];
    table.extend([12u32, 1, 0].map(u32::to_le_bytes).concat());
    table.extend([0x4_e000_0000u64, 0x1_0000].map(u64::to_le_bytes).concat());
    table.extend([1, 0, 40, 0, 0, 0, 0, 0]);
    table.extend([0x4_f000_0000u64, 4 << 30].map(u64::to_le_bytes).concat());
    table.extend([0, 0, 0, 0, 0, 0, 0, 0, 0xf, 0, 0, 0, 12, 0, 0, 0]);
    table
}

/// Component registers with one free decoder.
struct Component;

impl Registers for Component {
    fn size(&self) -> u32 {
        0x1_0000
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        match offset {
            // One capability: decoders at 0x1010.
            0x1000 => 1 << 24 | 1,
            0x1004 => 0x10 << 20 | 5,
            // One decoder, one target, any granularity.
            0x1010 => 3 << 8 | 1 << 4,
            _ => 0,
        }
    }

    fn write_u32(&mut self, _: u32, _: u32) {}

    fn read_u64(&mut self, _: u32) -> u64 {
        0
    }

    fn write_u64(&mut self, _: u32, _: u64) {}
}

fn main() {
    let ram = PfnRange::from_bytes(0, Bytes::gib(1)).expect("1 GiB is a range");
    let mut platform = Platform::<4>::default();
    for structure in cedt::structures(&table()) {
        let structure = structure.expect("the table is well-formed");
        platform.add(structure, &[ram]).expect("nothing overlaps");
    }
    let window = platform.windows().next().expect("the table has a window");
    println!("{} is routed to bridges {:?}", window.range, window.targets());

    let decoders = |role| {
        let decoders = Decoders::find(&mut Component, role).expect("the registers are well-formed");
        let occupancy = decoders.expect("there are decoders").occupancy(&mut Component);
        occupancy.expect("no decoder is committed")
    };
    let bridges = [Bridge { uid: 12, decoders: Some(decoders(Role::Bridge)) }];
    let memory = 0..Bytes::gib(1).0;
    let devices = [Device { bridge: 12, port: 0, decoders: decoders(Role::Device), memory }];
    let granularity = Granularity::MIN;
    let wish = Wish { len: Bytes::gib(1), granularity, kind: Restrictions::VOLATILE };
    let plan = Plan::new(window, &bridges, &devices, wish).expect("the window has room");
    for step in plan.steps() {
        println!("{}, decoder {}: {:?}", step.component, step.n, step.setting);
    }
    assert_eq!(plan.range().start(), Pfn::containing(0x4_f000_0000).expect("it is an address"));
    assert_eq!(plan.locate(0x4_f000_1234), Some((0, 0x1234)));
}

#[test]
fn a_device_gets_a_plan() {
    main();
}
