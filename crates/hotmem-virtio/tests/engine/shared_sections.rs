//! Tests devices whose regions begin or end in sections that have memory of other nodes.

use super::SECOND;
use super::machine::{Engine, GIB, Guest, MIB, Machine, REGION_ADDR};
use hotmem::{Bytes, NodeId, OnlineType, PfnRange, RangeError, RangeErrorKind};
use hotmem_testkit::Validated as _;
use hotmem_virtio::mem::{Failure, Pending, Reason, Status, Step};

/// The size of the outer devices. It ends in the middle of a section.
const OUTER: u64 = GIB + HALF_SECTION;
/// The size of the device between them. It begins and ends in the middle of a section.
const MIDDLE: u64 = GIB;
const HALF_SECTION: u64 = 64 * MIB;
const MIDDLE_ADDR: u64 = REGION_ADDR + OUTER;

/// Resizes a device, and returns what it plugs and the driver's status.
fn resize<'f>(
    guest: &mut Guest<'f>,
    hotplug: &mut Option<Engine<'f>>,
    requested: u64,
) -> (u64, Status) {
    guest.resize(requested);
    guest.hotplug = hotplug.take();
    guest.run(SECOND);
    *hotplug = guest.hotplug.take();
    (guest.driver.plugged().0, guest.driver.status())
}

/// Makes three devices side by side. The one in the middle is on another node.
fn devices(machine: &Machine, block: u64) -> [Guest<'_>; 3] {
    let device = |node, addr, size| {
        let mut guest = Guest::in_machine(machine, block, addr, size, OnlineType::Movable);
        guest.device.config.node_id = node;
        guest
    };
    [
        device(0, REGION_ADDR, OUTER),
        device(1, MIDDLE_ADDR, MIDDLE),
        device(0, MIDDLE_ADDR + MIDDLE, OUTER),
    ]
}

/// The status of a device of which only `reachable` can be plugged, because `other` is on another
/// node.
fn limited(requested: u64, reachable: u64, other: PfnRange) -> Status {
    let reason = Reason::Range(RangeError { range: other, kind: RangeErrorKind::OtherNode });
    let (requested, reachable) = (Bytes(requested), Bytes(reachable));
    Status::Pending(Pending::Region { requested, reachable, reason })
}

fn range(start: u64, len: u64) -> PfnRange {
    PfnRange::from_bytes(start, Bytes(len)).unwrap()
}

#[test]
fn a_device_whose_edge_sections_are_another_nodes_plugs_the_rest() {
    for (block, others_have_memory) in
        [(2 * MIB, false), (2 * MIB, true), (64 << 10, true), (64 * MIB, true)]
    {
        let machine = Machine::new();
        let mut hotplug = Some(machine.boot());
        let [mut below, mut middle, mut above] = devices(&machine, block);
        let outer = if others_have_memory { OUTER } else { 0 };
        for device in [&mut below, &mut above] {
            assert_eq!(resize(device, &mut hotplug, outer), (outer, Status::Reached));
        }
        // A driver that ran before has plugged memory of all three parts.
        let blocks = (MIDDLE / block) as usize;
        [0, blocks / 2, blocks - 1].into_iter().for_each(|n| middle.device.preplug(n));
        let reachable = MIDDLE - 2 * HALF_SECTION;
        for requested in [reachable / 2, reachable, 0, reachable] {
            let resized = resize(&mut middle, &mut hotplug, requested);
            assert_eq!(resized, (requested, Status::Reached), "blocks of {block}");
        }
        let edge = match others_have_memory {
            // A pageblock that is present.
            true => range(MIDDLE_ADDR - HALF_SECTION, 2 * MIB),
            false => range(MIDDLE_ADDR - HALF_SECTION, HALF_SECTION),
        };
        for requested in [MIDDLE - 64 * MIB, MIDDLE] {
            let expected = (reachable, limited(requested, reachable, edge));
            assert_eq!(resize(&mut middle, &mut hotplug, requested), expected);
            let text = expected.1;
            let Status::Pending(reason) = text else { panic!("{text:?}") };
            let text = reason.to_string();
            assert!(text.contains("of which 896MiB can be plugged, because"), "{text}");
        }
        let edge_blocks = (HALF_SECTION / block) as usize;
        let unused = [0..edge_blocks, blocks - edge_blocks..blocks];
        assert!(unused.into_iter().all(|part| !middle.device.blocks[part].contains(&true)));
        let node = machine.frames.node_of(middle.at_offset(HALF_SECTION));
        assert_eq!(node, Some(NodeId(1)));
        machine.frames.validated().unwrap();
        // A driver that begins again keeps what was announced.
        middle.begin_new_driver();
        let expected = (reachable, limited(MIDDLE, reachable, edge));
        assert_eq!(resize(&mut middle, &mut hotplug, MIDDLE), expected);
        assert_eq!(resize(&mut middle, &mut hotplug, 0), (0, Status::Reached));
    }
}

/// The node that announces a section first has it, whether it has memory there or not.
#[test]
fn the_device_that_starts_first_has_the_shared_section() {
    let machine = Machine::new();
    let mut hotplug = Some(machine.boot());
    let [mut below, mut middle, mut above] = devices(&machine, 2 * MIB);
    assert_eq!(resize(&mut middle, &mut hotplug, 0), (0, Status::Reached));
    let edges = [(&mut below, MIDDLE_ADDR), (&mut above, MIDDLE_ADDR + MIDDLE - HALF_SECTION)];
    for (device, edge) in edges {
        let expected = (GIB, limited(OUTER, GIB, range(edge, HALF_SECTION)));
        assert_eq!(resize(device, &mut hotplug, OUTER), expected);
    }
    assert_eq!(resize(&mut middle, &mut hotplug, MIDDLE), (MIDDLE, Status::Reached));
    machine.frames.validated().unwrap();
}

/// A device that lies in another node's sections altogether cannot be used.
#[test]
fn a_device_without_a_section_of_its_own_is_refused() {
    let machine = Machine::new();
    let mut hotplug = Some(machine.boot());
    let mut first =
        Guest::in_machine(&machine, 2 * MIB, REGION_ADDR, HALF_SECTION, OnlineType::Movable);
    assert_eq!(resize(&mut first, &mut hotplug, 2 * MIB), (2 * MIB, Status::Reached));
    let addr = REGION_ADDR + HALF_SECTION;
    let mut second = Guest::in_machine(&machine, 2 * MIB, addr, HALF_SECTION, OnlineType::Movable);
    second.device.config.node_id = 1;
    second.hotplug = hotplug;
    second.resize(HALF_SECTION);
    let other = RangeError { range: range(REGION_ADDR, 2 * MIB), kind: RangeErrorKind::OtherNode };
    assert_eq!(second.poll(), Step::Ready(Err(Failure::Region(Reason::Range(other)))));
}
