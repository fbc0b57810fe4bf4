//! Tests on QEMU's pseries machine. The tests in this file read the machine's device tree into a
//! hosted partition, and add and remove the partition's memory. The tests in `guest` run the guest.

mod firmware;
mod guest;

use hotmem::{Budget, Bytes, MemoryBlockState, OnlineType};
use hotmem_dlpar::{
    Change, DynamicMemory, FLAG_ASSIGNED, FLAG_DRC_INVALID, FLAG_RESERVED, LmbSelection, LmbSet,
    LmbSize, Progress, Request, Tree, Version,
};
use hotmem_lab::dlpar::{Description, Partition, PartitionStorage};
use std::ops::Range;

const LMB: Bytes = Bytes::mib(256);

/// The arguments of a machine, and the LMBs that its device tree must describe.
struct PartitionShape {
    args: &'static [&'static str],
    /// The number of LMBs in the property.
    lmbs: u32,
    /// The number of LMBs that are never added or removed. These contain boot memory, rounded up to
    /// whole GiB.
    reserved_lmbs: u32,
    /// Ranges of LMBs that are assigned at boot and can be removed, and the node of each range.
    assigned: &'static [(Range<u64>, u32)],
}

const SHAPES: [PartitionShape; 4] = [
    PartitionShape {
        args: &["-m", "1G,slots=4,maxmem=4G"],
        lmbs: 16,
        reserved_lmbs: 4,
        assigned: &[],
    },
    PartitionShape {
        args: &[
            "-m",
            "1G,slots=32,maxmem=33G",
            "-smp",
            "2",
            "-object",
            "memory-backend-ram,id=a,size=512M",
            "-numa",
            "node,nodeid=0,memdev=a,cpus=0",
            "-object",
            "memory-backend-ram,id=b,size=512M",
            "-numa",
            "node,nodeid=1,memdev=b,cpus=1",
        ],
        lmbs: 132,
        reserved_lmbs: 4,
        assigned: &[],
    },
    PartitionShape {
        args: &[
            "-m",
            "512M,slots=4,maxmem=8G",
            "-object",
            "memory-backend-ram,id=a,size=1G",
            "-device",
            "pc-dimm,memdev=a",
        ],
        lmbs: 34,
        reserved_lmbs: 4,
        assigned: &[(4..8, 0)],
    },
    PartitionShape {
        args: &[
            "-m",
            "1G,slots=8,maxmem=16G",
            "-smp",
            "2",
            "-object",
            "memory-backend-ram,id=a,size=512M",
            "-numa",
            "node,nodeid=0,memdev=a,cpus=0",
            "-object",
            "memory-backend-ram,id=b,size=512M",
            "-numa",
            "node,nodeid=1,memdev=b,cpus=1",
            "-object",
            "memory-backend-ram,id=c,size=512M",
            "-device",
            "pc-dimm,memdev=c,node=1",
            "-object",
            "memory-backend-ram,id=d,size=256M",
            "-device",
            "pc-dimm,memdev=d,node=0",
            "-object",
            "memory-backend-ram,id=e,size=768M",
            "-device",
            "pc-dimm,memdev=e,node=1,addr=0x100000000",
        ],
        lmbs: 64,
        reserved_lmbs: 4,
        assigned: &[(4..6, 1), (6..7, 0), (16..19, 1)],
    },
];

#[test]
fn lmbs_of_one_node_are_read_added_and_removed() {
    check(&SHAPES[0]);
}

#[test]
fn lmbs_of_two_nodes_are_read_added_and_removed() {
    check(&SHAPES[1]);
}

#[test]
fn lmbs_that_are_assigned_at_boot_can_be_removed() {
    check(&SHAPES[2]);
}

#[test]
fn lmbs_of_two_nodes_that_are_assigned_at_boot_can_be_removed() {
    check(&SHAPES[3]);
}

/// Checks the LMBs of a machine's device tree, and adds and removes them, in both versions of the
/// property.
fn check(shape: &PartitionShape) {
    for version in [Version::V1, Version::V2] {
        check_version(shape, version);
    }
}

fn check_version(shape: &PartitionShape, version: Version) {
    let blob = firmware::device_tree(version, shape.args);
    let description = Description::from_tree(&blob).unwrap();
    let words = words(&blob);
    let tree = Tree::parse(&words).unwrap();
    assert_eq!(tree.memory.version(), version);
    assert_eq!(tree.memory.lmb_size().bytes(), LMB);
    assert_eq!(tree.memory.lmbs(), shape.lmbs);
    assert!(tree.numa.primary_domain.is_some());

    let mut storage = PartitionStorage::new(description).unwrap();
    let mut partition = storage.start(OnlineType::Movable).unwrap();
    let reserved_flags = FLAG_RESERVED | FLAG_DRC_INVALID;
    for (nth, lmb) in (0..).zip(partition.table().lmbs()) {
        assert_eq!(lmb.range.start().phys_addr(), nth * LMB.0);
        let is_reserved = nth < u64::from(shape.reserved_lmbs);
        let expected = if is_reserved { reserved_flags } else { 0 };
        assert_eq!(lmb.flags & reserved_flags, expected, "LMB {nth}");
    }
    let assigned_at_boot: Vec<_> = shape.assigned.iter().cloned().flat_map(with_node).collect();
    assert_eq!(assigned(&partition), assigned_at_boot);
    let sets_of_tree = sets(version, tree.memory.value());
    assert_eq!(sets(version, &property_of(&partition)), sets_of_tree);

    let lmbs_at_start: Vec<_> = partition.table().lmbs().collect();
    let removable = shape.lmbs - shape.reserved_lmbs;
    let absent = removable - u32::try_from(assigned_at_boot.len()).unwrap();
    change(&mut partition, Change::Add, absent);
    let all_removable: Vec<u64> = (shape.reserved_lmbs.into()..shape.lmbs.into()).collect();
    assert_eq!(
        assigned(&partition).into_iter().map(|(nth, _)| nth).collect::<Vec<_>>(),
        all_removable
    );
    assert_eq!(partition.hypervisor.property(), property_of(&partition));

    change(&mut partition, Change::Remove, removable);
    assert_eq!(assigned(&partition), []);
    assert_eq!(partition.hypervisor.property(), property_of(&partition));
    // All fields except the flag are unchanged. The firmware has named the node of an LMB that was
    // absent at the start only when the LMB was added.
    for (old, lmb) in lmbs_at_start.into_iter().zip(partition.table().lmbs()) {
        let flags = if lmb.drc_index.is_some() { old.flags & !FLAG_ASSIGNED } else { old.flags };
        let node = old.node.or(lmb.node);
        assert_eq!((lmb.drc_index, lmb.flags, lmb.node), (old.drc_index, flags, node));
    }

    let result = carry_out(&mut partition, Change::Add, removable + 1);
    assert!(matches!(result, Progress::Ready(Err(_))), "{result:?}");
    assert_eq!(assigned(&partition), []);
}

fn with_node((lmbs, node): (Range<u64>, u32)) -> impl Iterator<Item = (u64, u32)> {
    lmbs.map(move |nth| (nth, node))
}

/// Returns the removable LMBs that are assigned, each with its node. Checks that exactly these LMBs
/// are online, on these nodes.
fn assigned(partition: &Partition<'_>) -> Vec<(u64, u32)> {
    let mut assigned = Vec::new();
    for (nth, lmb) in (0..).zip(partition.table().lmbs()) {
        let online = partition
            .hotplug
            .memory_blocks(LMB.frames())
            .find(|block| block.range == lmb.range && block.state == MemoryBlockState::Online);
        let is_assigned = lmb.flags & FLAG_ASSIGNED != 0 && lmb.flags & FLAG_RESERVED == 0;
        if is_assigned {
            let node = online.expect("an assigned LMB is offline").node.0;
            assert_eq!(Some(node), lmb.node.map(|node| node.0), "LMB {nth}");
            assigned.push((nth, node));
        } else if lmb.flags & FLAG_RESERVED == 0 {
            assert!(online.is_none(), "LMB {nth} is online");
        }
    }
    let movable = partition.hotplug.frames().counts().movable;
    assert_eq!(movable, assigned.len() as u64 * LMB.frames());
    assigned
}

/// Adds or removes `lmbs` LMBs, which must succeed for all of them.
fn change(partition: &mut Partition<'_>, change: Change, lmbs: u32) {
    match carry_out(partition, change, lmbs) {
        Progress::Ready(Ok(summary)) => {
            assert_eq!((summary.lmbs, summary.skipped, summary.misplaced), (lmbs, 0, 0));
        }
        other => panic!("{change:?} {lmbs}: {other:?}"),
    }
}

fn carry_out(partition: &mut Partition<'_>, change: Change, lmbs: u32) -> Progress {
    let request = Request::new(change, LmbSelection::Count(lmbs)).online_as(OnlineType::Movable);
    let (dlpar, mut machine) = partition.machine();
    if let Err(error) = dlpar.begin(request) {
        return Progress::Ready(Err(error.into()));
    }
    loop {
        match dlpar.poll(&mut machine, Budget { pageblocks: 1000 }) {
            Progress::Working => {}
            result => return result,
        }
    }
}

/// Returns the value of the property that describes the partition's table.
fn property_of(partition: &Partition<'_>) -> Vec<u8> {
    let property = partition.table().dynamic_memory();
    let mut value = vec![0; property.len()];
    assert_eq!(property.copy_to(&mut value), value.len());
    value
}

fn sets(version: Version, property: &[u8]) -> Vec<LmbSet> {
    let size = LmbSize::new(LMB).unwrap();
    DynamicMemory::parse(version, property, size).unwrap().sets().collect()
}

/// Copies a device tree to words, because the parser needs aligned words.
fn words(blob: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_ne_bytes(word)
    };
    blob.chunks(8).map(word).collect()
}
