//! Adds two LMBs and removes them again, as `drmgr` does, with a simulated hypervisor.

use hotmem::{AlwaysMapped, Budget, Bytes, Frames, Hotplug, NoHooks, OneCpu};
use hotmem_dlpar::hypervisor::{Connector, Hypervisor};
use hotmem_dlpar::{
    Dlpar, DrcIndex, DynamicMemory, Group, LmbSelection, LmbSize, LookupArrays, Machine, Needs,
    Numa, Request, Run, Storage, Table, Version,
};
use std::alloc::{Layout, alloc_zeroed};
use std::ops::ControlFlow;

static FRAMES: Frames<OneCpu> = Frames::new(OneCpu);

const MIB: u64 = 1 << 20;

fn cells(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 128 MiB of boot memory, and above it 8 LMBs of 16 MiB that can be added.
    let layout = Layout::from_size_align(256 << 20, 4096)?;
    let ram = [(0..128 * MIB).into()];
    // SAFETY: the layout is not empty; all of it is mapped, and nothing else uses it.
    let mut hotplug = unsafe {
        let mapping = AlwaysMapped::new(alloc_zeroed(layout), (0..256 * MIB).try_into()?);
        Hotplug::bootstrap(&FRAMES, mapping, &ram)?
    };

    // `ibm,dynamic-memory-v2`: one set of 8 LMBs from 128 MiB on, none of them assigned.
    let property = cells(&[1, 8, 0, 128 << 20, 0x8000_0008, 0, 0]);
    let size = LmbSize::new(Bytes::mib(16))?;
    let memory = DynamicMemory::parse(Version::V2, &property, size)?;
    let lists = cells(&[1, 4, 0, 0, 0, 0]);
    let lists = LookupArrays::parse(&lists)?;
    let needs = Needs::of(&memory, &lists);
    let (mut groups, mut runs) = (vec![Group::EMPTY; needs.groups], vec![Run::EMPTY; needs.runs]);
    let (mut by_index, mut arrays) = (vec![0; needs.runs], vec![0; needs.arrays]);
    let storage = Storage {
        groups: &mut groups,
        runs: &mut runs,
        by_index: &mut by_index,
        arrays: &mut arrays,
    };
    let table = Table::new(&memory, &lists, Numa::OFF, storage)?;

    let (mut connectors, mut tree) = (Connector::of(&table).collect::<Vec<_>>(), [0; 256]);
    let mut hypervisor = Hypervisor::new(&mut connectors, 0, &mut tree);
    let mut dlpar = Dlpar::new(table, &hotplug);
    let third_and_fourth = LmbSelection::Range { first: DrcIndex(0x8000_000a), count: 2 };
    for request in [Request::add(third_and_fourth), Request::remove(third_and_fourth)] {
        let hooks = &mut NoHooks;
        let mut machine = Machine { hotplug: &mut hotplug, hooks, connectors: &mut hypervisor };
        let keep_going = |_| ControlFlow::Continue(());
        let summary = dlpar.carry_out(request, &mut machine, Budget::UNLIMITED, keep_going)?;
        let present = FRAMES.counts().present << 12;
        println!("{request}: {} LMBs, the partition has {} MiB", summary.lmbs, present / MIB);
        assert_eq!(summary.lmbs, 2);
    }
    println!("{} calls of the hypervisor", hypervisor.calls());
    assert_eq!(FRAMES.counts().present << 12, 128 * MIB);
    Ok(())
}

#[test]
fn lmbs_are_added_and_removed() {
    main().unwrap();
}
