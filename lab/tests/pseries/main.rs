//! Tests on QEMU's pseries machine. Some read the machine's device tree into a hosted partition and
//! add and remove its memory; others run the guest.

mod firmware;
mod guest;

use hotmem::{Budget, Bytes, MemoryBlockState, OnlineType};
use hotmem_dlpar::{
    Change, DynamicMemory, FLAG_ASSIGNED, FLAG_DRC_INVALID, FLAG_RESERVED, LmbSet, LmbSize,
    Progress, Request, Tree, Version, Which,
};
use hotmem_lab::dlpar::{Description, Partition, Parts};
use std::ops::Range;

const LMB: Bytes = Bytes::mib(256);

/// A machine, and what its device tree must describe.
struct Shape {
    args: &'static [&'static str],
    /// The number of all LMBs.
    lmbs: u32,
    /// The number of LMBs that are never added or removed: boot memory up to a whole GiB.
    fixed: u32,
    /// Positions of the LMBs that are assigned at boot and can be removed, and their node.
    assigned: &'static [(Range<u64>, u32)],
}

const SHAPES: [Shape; 4] = [
    Shape { args: &["-m", "1G,slots=4,maxmem=4G"], lmbs: 16, fixed: 4, assigned: &[] },
    Shape {
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
        fixed: 4,
        assigned: &[],
    },
    Shape {
        args: &[
            "-m",
            "512M,slots=4,maxmem=8G",
            "-object",
            "memory-backend-ram,id=a,size=1G",
            "-device",
            "pc-dimm,memdev=a",
        ],
        lmbs: 34,
        fixed: 4,
        assigned: &[(4..8, 0)],
    },
    Shape {
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
        fixed: 4,
        assigned: &[(4..6, 1), (6..7, 0), (16..19, 1)],
    },
];

#[test]
fn one_node_is_described() {
    check(&SHAPES[0]);
}

#[test]
fn two_nodes_are_described() {
    check(&SHAPES[1]);
}

#[test]
fn memory_that_is_assigned_at_boot_can_be_removed() {
    check(&SHAPES[2]);
}

#[test]
fn memory_of_two_nodes_that_is_assigned_at_boot_can_be_removed() {
    check(&SHAPES[3]);
}

fn check(shape: &Shape) {
    for version in [Version::V1, Version::V2] {
        check_version(shape, version);
    }
}

fn check_version(shape: &Shape, version: Version) {
    let blob = firmware::device_tree(version, shape.args);
    let description = Description::of_tree(&blob).unwrap();
    let words = words(&blob);
    let tree = Tree::parse(&words).unwrap();
    assert_eq!(tree.memory.version(), version);
    assert_eq!(tree.memory.lmb_size().bytes(), LMB);
    assert_eq!(tree.memory.lmbs(), shape.lmbs);
    assert!(tree.numa.primary_domain.is_some());

    let mut parts = Parts::new(description).unwrap();
    let mut partition = parts.start(OnlineType::Movable).unwrap();
    let fixed = FLAG_RESERVED | FLAG_DRC_INVALID;
    for (nth, lmb) in (0..).zip(partition.table().lmbs()) {
        assert_eq!(lmb.range.start().phys_addr(), nth * LMB.0);
        let stays = nth < u64::from(shape.fixed);
        assert_eq!(lmb.flags & fixed, if stays { fixed } else { 0 }, "LMB {nth}");
    }
    let at_boot: Vec<_> = shape.assigned.iter().cloned().flat_map(each).collect();
    assert_eq!(assigned(&partition), at_boot);
    let as_read = sets(version, tree.memory.value());
    assert_eq!(sets(version, &written(&partition)), as_read);

    let before: Vec<_> = partition.table().lmbs().collect();
    let that_can_go = shape.lmbs - shape.fixed;
    let absent = that_can_go - u32::try_from(at_boot.len()).unwrap();
    change(&mut partition, Change::Add, absent);
    let all: Vec<u64> = (shape.fixed.into()..shape.lmbs.into()).collect();
    assert_eq!(assigned(&partition).into_iter().map(|(nth, _)| nth).collect::<Vec<_>>(), all);
    assert_eq!(partition.hypervisor.property(), written(&partition));

    change(&mut partition, Change::Remove, that_can_go);
    assert_eq!(assigned(&partition), []);
    assert_eq!(partition.hypervisor.property(), written(&partition));
    // All other fields are unchanged.
    for (was, lmb) in before.into_iter().zip(partition.table().lmbs()) {
        let flags = if lmb.drc_index.is_some() { was.flags & !FLAG_ASSIGNED } else { was.flags };
        assert_eq!((lmb.drc_index, lmb.flags, lmb.node), (was.drc_index, flags, was.node));
    }

    let too_many = poll(&mut partition, Change::Add, that_can_go + 1);
    assert!(matches!(too_many, Progress::Ready(Err(_))), "{too_many:?}");
    assert_eq!(assigned(&partition), []);
}

fn each((lmbs, node): (Range<u64>, u32)) -> impl Iterator<Item = (u64, u32)> {
    lmbs.map(move |nth| (nth, node))
}

/// Returns the removable LMBs that are assigned, each with its node, and checks that the engine has
/// them online on that node.
fn assigned(partition: &Partition<'_>) -> Vec<(u64, u32)> {
    let mut assigned = Vec::new();
    for (nth, lmb) in (0..).zip(partition.table().lmbs()) {
        let online = partition
            .hotplug
            .memory_blocks(LMB.frames())
            .find(|block| block.range == lmb.range && block.state == MemoryBlockState::Online);
        let has = lmb.flags & FLAG_ASSIGNED != 0 && lmb.flags & FLAG_RESERVED == 0;
        if has {
            let node = online.expect("it is online").node.0;
            assert_eq!(node, lmb.node.0, "LMB {nth}");
            assigned.push((nth, node));
        } else if lmb.flags & FLAG_RESERVED == 0 {
            assert!(online.is_none(), "LMB {nth} is online");
        }
    }
    let movable = partition.hotplug.frames().counts().movable;
    assert_eq!(movable, assigned.len() as u64 * LMB.frames());
    assigned
}

fn change(partition: &mut Partition<'_>, change: Change, lmbs: u32) {
    match poll(partition, change, lmbs) {
        Progress::Ready(Ok(summary)) => {
            assert_eq!((summary.lmbs, summary.skipped, summary.misplaced), (lmbs, 0, 0));
        }
        other => panic!("{change:?} {lmbs}: {other:?}"),
    }
}

fn poll(partition: &mut Partition<'_>, change: Change, lmbs: u32) -> Progress {
    let request = Request::new(change, Which::Count(lmbs)).online_as(OnlineType::Movable);
    let (dlpar, mut machine) = partition.machine();
    if let Err(error) = dlpar.begin(request) {
        return Progress::Ready(Err(error.into()));
    }
    loop {
        match dlpar.poll(&mut machine, Budget { pageblocks: 1000 }) {
            Progress::Working => {}
            done => return done,
        }
    }
}

/// Returns the property as the partition would write it back.
fn written(partition: &Partition<'_>) -> Vec<u8> {
    let property = partition.table().dynamic_memory();
    let mut value = vec![0; property.len()];
    assert_eq!(property.copy_to(&mut value), value.len());
    value
}

fn sets(version: Version, property: &[u8]) -> Vec<LmbSet> {
    let size = LmbSize::new(LMB).unwrap();
    DynamicMemory::parse(version, property, size).unwrap().sets().collect()
}

/// Copies a tree to words, which are aligned.
fn words(blob: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_ne_bytes(word)
    };
    blob.chunks(8).map(word).collect()
}
