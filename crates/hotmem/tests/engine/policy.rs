//! Tests which zone each policy chooses for added memory, with groups and with vetoes.

use hotmem::*;
use hotmem::{RangeError, RangeErrorKind};
use hotmem_testkit::Validated as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, boot, range};

/// The ratio of `Policy::AUTO_MOVABLE`, in percent.
const RATIO_PERCENT: u64 = 301;

/// Adds `part` and puts it online in the zones that the policy chooses. Returns the state and the
/// number of pageblocks of each run.
fn plug(hotplug: &mut Hotplug<'_, OneCpu>, part: PfnRange) -> Vec<(State, u64)> {
    hotplug.add(part).unwrap();
    hotplug.online(part, OnlineType::Online, &mut NoHooks).unwrap();
    runs(hotplug, part)
}

/// Returns the state and the number of pageblocks of each run of `part`.
fn runs(hotplug: &Hotplug<'_, OneCpu>, part: PfnRange) -> Vec<(State, u64)> {
    let mut actual = Vec::new();
    let mut remaining = part;
    while !remaining.is_empty() {
        let (run, state) = hotplug.state_at(remaining.start(), remaining.end());
        actual.push((state, run.frames() / PAGEBLOCK));
        remaining = remaining.split_at(run.end()).1;
    }
    actual
}

/// The number of pageblocks in a section.
const BLOCKS_PER_SECTION: u64 = SECTION / PAGEBLOCK;

#[test]
fn contig_zones_chooses_the_zone_that_spans_the_memory_if_only_one_does() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(8 * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    hotplug.announce(range(SECTION, 7 * SECTION)).unwrap();
    let part = |n| range(n * SECTION, SECTION);
    for n in [2, 4] {
        hotplug.add(part(n)).unwrap();
        hotplug.online(part(n), OnlineType::Movable, &mut NoHooks).unwrap();
    }
    assert_eq!(plug(&mut hotplug, part(3)), [(State::OnlineMovable, BLOCKS_PER_SECTION)]);
    assert_eq!(plug(&mut hotplug, part(6)), [(State::Online, BLOCKS_PER_SECTION)]);
    // Now both zones span the section, so it becomes kernel memory.
    assert_eq!(plug(&mut hotplug, part(5)), [(State::Online, BLOCKS_PER_SECTION)]);
    hotplug.settings.policy = Policy::ContigZones { movable_node: true };
    assert_eq!(plug(&mut hotplug, part(7)), [(State::OnlineMovable, BLOCKS_PER_SECTION)]);
}

#[test]
fn auto_movable_allows_exactly_boot_memory_times_the_ratio_of_movable_memory() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    hotplug.settings.policy = Policy::AUTO_MOVABLE;
    let kernel = hotplug.zone(NodeId::ZERO, Zone::Kernel).online;
    hotplug.announce(range(SECTION, 7 * SECTION)).unwrap();
    let parts = plug(&mut hotplug, range(SECTION, 5 * SECTION));
    let movable = kernel * RATIO_PERCENT / 100 / PAGEBLOCK;
    let remaining = 5 * BLOCKS_PER_SECTION - movable;
    assert_eq!(parts, [(State::OnlineMovable, movable), (State::Online, remaining)]);
    // Added kernel memory does not allow more movable memory.
    let added = range(6 * SECTION, SECTION);
    assert_eq!(plug(&mut hotplug, added), [(State::Online, BLOCKS_PER_SECTION)]);
}

#[test]
fn with_per_node_the_ratio_holds_within_each_node() {
    for per_node in [false, true] {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
        let mut hotplug = boot(&frames, &memory, SECTION);
        hotplug.settings.policy = Policy::AutoMovable { ratio_percent: 301, per_node };
        let far = Announce { node: NodeId(1), ..range(2 * SECTION, SECTION).into() };
        hotplug.announce(far).unwrap();
        let expected = if per_node { State::Online } else { State::OnlineMovable };
        assert_eq!(
            plug(&mut hotplug, range(2 * SECTION, SECTION)),
            [(expected, BLOCKS_PER_SECTION)]
        );
    }
}

#[test]
fn a_static_group_is_movable_as_a_whole_or_not_at_all() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    hotplug.settings.policy = Policy::AUTO_MOVABLE;
    let dimm = |start, sections| Announce {
        group: Group::Static,
        ..range(start * SECTION, sections * SECTION).into()
    };
    hotplug.announce(dimm(1, 2)).unwrap();
    hotplug.announce(dimm(4, 4)).unwrap();
    // The ratio allows a group of two sections to be movable, but not one of four. So the first
    // part of the small group is movable, and that of the large group is not.
    assert_eq!(plug(&mut hotplug, range(SECTION, PAGEBLOCK)), [(State::OnlineMovable, 1)]);
    assert_eq!(plug(&mut hotplug, range(4 * SECTION, PAGEBLOCK)), [(State::Online, 1)]);
    // If a part is kernel memory, the rest becomes kernel memory as well.
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    hotplug.settings.policy = Policy::AUTO_MOVABLE;
    hotplug.announce(dimm(1, 2)).unwrap();
    hotplug.add(range(SECTION, PAGEBLOCK)).unwrap();
    hotplug.online(range(SECTION, PAGEBLOCK), OnlineType::Kernel, &mut NoHooks).unwrap();
    let remaining = range(SECTION + PAGEBLOCK, SECTION);
    assert_eq!(plug(&mut hotplug, remaining), [(State::Online, BLOCKS_PER_SECTION)]);
}

#[test]
fn kernel_memory_of_a_dynamic_group_allows_more_movable_memory_of_the_group() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    hotplug.settings.policy = Policy::AutoMovable { ratio_percent: 100, per_node: false };
    let unit = SECTION / 2;
    let device = range(SECTION, 16 * SECTION);
    hotplug.announce(Announce { group: Group::Dynamic { unit }, ..device.into() }).unwrap();
    // One section of boot memory allows one movable section. After that, units alternate: each
    // kernel unit allows one movable unit.
    let parts = plug(&mut hotplug, range(SECTION, 3 * SECTION));
    let half = BLOCKS_PER_SECTION / 2;
    let (movable, kernel) = (State::OnlineMovable, State::Online);
    assert_eq!(
        parts,
        [
            (movable, BLOCKS_PER_SECTION),
            (kernel, half),
            (movable, half),
            (kernel, half),
            (movable, half)
        ]
    );
    // A unit that has some kernel memory becomes kernel memory.
    let kernel_block = range(4 * SECTION, PAGEBLOCK);
    hotplug.add(kernel_block).unwrap();
    hotplug.online(kernel_block, OnlineType::Kernel, &mut NoHooks).unwrap();
    let remaining = range(4 * SECTION + PAGEBLOCK, unit - PAGEBLOCK);
    assert_eq!(plug(&mut hotplug, remaining), [(kernel, half - 1)]);
}

#[test]
fn with_per_node_kernel_memory_of_a_group_allows_only_movable_memory_on_its_node() {
    let (home, away) = (NodeId(1), NodeId(2));
    for (kernel_on, expected_state) in [(home, State::OnlineMovable), (away, State::Online)] {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
        let mut hotplug = boot(&frames, &memory, SECTION);
        hotplug.settings.policy = Policy::AutoMovable { ratio_percent: 100, per_node: true };
        let section = |n| range(n * SECTION, SECTION);
        let group = Group::Dynamic { unit: SECTION };
        let device = Announce { node: home, group, ..range(SECTION, 4 * SECTION).into() };
        hotplug.announce(device).unwrap();
        hotplug.announce(Announce { node: home, ..section(6).into() }).unwrap();
        for (n, node, kind) in [(1, kernel_on, OnlineType::Kernel), (2, away, OnlineType::Movable)]
        {
            hotplug.add(AddRequest { node: Some(node), ..section(n).into() }).unwrap();
            hotplug.online(section(n), kind, &mut NoHooks).unwrap();
        }
        // This memory is not in the device's group, so the device's kernel memory does not allow it
        // to be movable, whether it is added in one step or in several.
        let (first, remaining) = section(6).split_at(range(6 * SECTION + PAGEBLOCK, 0).start());
        assert_eq!(plug(&mut hotplug, first), [(State::Online, 1)]);
        assert_eq!(plug(&mut hotplug, remaining), [(State::Online, BLOCKS_PER_SECTION - 1)]);
        // Memory of the device is movable if the device's kernel memory is on the same node.
        assert_eq!(plug(&mut hotplug, section(3)), [(expected_state, BLOCKS_PER_SECTION)]);
        // Memory that was taken offline no longer counts, in any zone.
        for n in [1, 2, 3] {
            let mut offline = hotplug.offline(section(n)).unwrap();
            let done = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
            assert_eq!(done, Progress::Ready(section(n)));
        }
        assert_eq!(plug(&mut hotplug, section(4)), [(State::Online, BLOCKS_PER_SECTION)]);
    }
}

/// Hooks that veto the second request to go online.
#[derive(Default)]
struct SecondRequestRefused {
    asked_ranges: Vec<PfnRange>,
    cancelled_ranges: Vec<PfnRange>,
}

impl Hooks for SecondRequestRefused {
    fn going_online(&mut self, range: PfnRange, _: Zone) -> Result<(), Veto> {
        self.asked_ranges.push(range);
        if self.asked_ranges.len() == 2 { Err(Veto("enough")) } else { Ok(()) }
    }
    fn online_cancelled(&mut self, range: PfnRange) {
        self.cancelled_ranges.push(range);
    }
}

#[test]
fn a_veto_leaves_the_whole_range_offline_and_cancels_what_was_agreed() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
    let mut hotplug = boot(&frames, &memory, SECTION);
    hotplug.settings.policy = Policy::AutoMovable { ratio_percent: 100, per_node: false };
    let all = range(SECTION, 2 * SECTION);
    hotplug.announce(all).unwrap();
    hotplug.add(all).unwrap();
    let mut hooks = SecondRequestRefused::default();
    let before = frames.validated().unwrap();
    let refused = hotplug.online(all, OnlineType::Online, &mut hooks);
    let (low, high) = all.split_at(range(2 * SECTION, 0).start());
    assert_eq!(
        refused,
        Err(RangeError { range: high, kind: RangeErrorKind::Vetoed(Veto("enough")) })
    );
    assert_eq!((hooks.asked_ranges, hooks.cancelled_ranges), (vec![low, high], vec![low]));
    assert_eq!(frames.validated().unwrap(), before);
    assert_eq!(runs(&hotplug, all), [(State::Offline, 2 * BLOCKS_PER_SECTION)]);
}

#[test]
fn the_default_online_type_applies_only_if_the_call_names_none() {
    use OnlineType::{Kernel, Movable, Offline};
    let expected_state = |kind| match kind {
        Offline => State::Offline,
        Movable => State::OnlineMovable,
        _ => State::Online,
    };
    for auto in [Offline, Kernel, Movable] {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
        let mut hotplug = boot(&frames, &memory, SECTION);
        hotplug.announce(range(SECTION, 4 * SECTION)).unwrap();
        hotplug.settings.auto_online = auto;
        for (n, kind) in (1..).zip([None, Some(Offline), Some(Kernel), Some(Movable)]) {
            let part = range(n * SECTION, SECTION);
            hotplug.add(part).unwrap();
            assert_eq!(runs(&hotplug, part), [(State::Offline, BLOCKS_PER_SECTION)]);
            hotplug.online(part, kind, &mut NoHooks).unwrap();
            assert_eq!(
                runs(&hotplug, part),
                [(expected_state(kind.unwrap_or(auto)), BLOCKS_PER_SECTION)]
            );
        }
    }
}

#[test]
fn an_invalid_unit_counts_as_the_nearest_valid_one() {
    for unit in [0, u64::MAX] {
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(2 * SECTION));
        let mut hotplug = boot(&frames, &memory, SECTION);
        hotplug.settings.policy = Policy::AUTO_MOVABLE;
        let device = range(SECTION, SECTION);
        hotplug.announce(Announce { group: Group::Dynamic { unit }, ..device.into() }).unwrap();
        assert_eq!(plug(&mut hotplug, device), [(State::OnlineMovable, BLOCKS_PER_SECTION)]);
    }
}

/// Records the zones to which it has agreed.
#[derive(Default)]
struct AgreedZones(Vec<(PfnRange, Zone)>);

impl Hooks for AgreedZones {
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        self.0.push((range, zone));
        Ok(())
    }
}

/// The unit begins on node 1, which has no boot memory, so that part is kernel memory. The rest is on
/// node 0, whose boot memory would allow movable memory.
#[test]
fn a_unit_on_two_nodes_comes_online_in_the_zone_to_which_the_kernel_agreed() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(6 * SECTION));
    let mut hotplug = boot(&frames, &memory, 4 * SECTION);
    hotplug.settings.policy = Policy::AutoMovable { ratio_percent: 301, per_node: true };
    let unit = range(4 * SECTION, 2 * SECTION);
    let group = Group::Dynamic { unit: 2 * SECTION };
    hotplug.announce(Announce { group, nodes_vary: true, ..unit.into() }).unwrap();
    let parts: Vec<PfnRange> = unit.chunks(SECTION).collect();
    for (&part, node) in parts.iter().zip([NodeId(1), NodeId(0)]) {
        hotplug.add(AddRequest { node: Some(node), ..part.into() }).unwrap();
    }
    let mut agreed = AgreedZones::default();
    hotplug.online(unit, OnlineType::Online, &mut agreed).unwrap();
    assert_eq!(agreed.0, [(parts[0], Zone::Kernel), (parts[1], Zone::Kernel)]);
    assert_eq!(runs(&hotplug, unit), [(State::Online, 2 * BLOCKS_PER_SECTION)]);
    frames.validated().unwrap();
}
