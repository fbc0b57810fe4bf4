//! Regions that give back a part of what was announced, and removals cut in two.

use hotmem::*;
use hotmem_testkit::Raw as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::{BLOCK, Cpus, Memory, SECTION, boot, pfn, range};

const BOOT: u64 = 2 * SECTION;
const ALL: u64 = 12 * SECTION;

fn with(f: impl FnOnce(&mut Hotplug<'_, Cpus>)) {
    let memory = Memory::new(ALL);
    let frames = Frames::new(Cpus);
    let mut hotplug = boot(&frames, &memory, BOOT);
    f(&mut hotplug);
    frames.validated().expect("a machine that agrees with itself");
}

#[test]
fn what_is_trimmed_off_can_be_announced_for_another_node() {
    with(|hotplug| {
        let all = range(BOOT, 8 * SECTION);
        let region = hotplug.announce(all).expect("room");
        let kept = range(BOOT + 3 * SECTION, 2 * SECTION);
        hotplug.add(kept).expect("announced");
        hotplug.online(kept, OnlineType::Movable, &mut NoHooks).expect("there");

        // Nothing that is there is trimmed off, and nothing is added by trimming.
        let less = range(BOOT + 3 * SECTION, SECTION);
        let there = range(BOOT + 4 * SECTION, BLOCK);
        assert_eq!(hotplug.trim(region, less), Err(WithdrawError::Present(there)));
        assert_eq!(hotplug.trim(region, PfnRange::EMPTY), Err(WithdrawError::Unknown));
        let more = range(BOOT, 9 * SECTION);
        assert_eq!(hotplug.trim(region, more), Err(WithdrawError::Unknown));
        let (boot, memory) = hotplug.regions().next().expect("boot memory");
        assert_eq!(hotplug.trim(boot, memory.split_at(pfn(BLOCK)).1), Err(WithdrawError::Unknown));
        assert_eq!(hotplug.region_range(region), Some(all));

        hotplug.trim(region, kept).expect("the rest is absent");
        assert_eq!(hotplug.region_range(region), Some(kept));
        assert_eq!(hotplug.region_node(region), Some(NodeId::ZERO));
        let node = NodeId::new(1);
        for rest in [all.split_at(kept.start()).0, all.split_at(kept.end()).1] {
            assert_eq!(hotplug.state_at(rest.start(), rest.end()), (rest, State::Unknown));
            let other = hotplug.announce(Announce::range(rest).on_node(node)).expect("room");
            assert_eq!(hotplug.region_node(other), Some(node));
            hotplug.add(rest).expect("announced");
            hotplug.online(rest, OnlineType::Movable, &mut NoHooks).expect("there");
        }
        assert_eq!(hotplug.zone(node, Zone::Movable).online, 6 * SECTION);
        assert_eq!(hotplug.zone(NodeId::ZERO, Zone::Movable).online, 2 * SECTION);
        // All of it can be used and goes again.
        let whole = hotplug.frames().take_raw(Want::frames(BLOCK).movable().at(kept.start()));
        hotplug.frames().give_raw(whole.expect("free")).expect("allocated");
        let mut shrink = Shrink::new(ShrinkOptions::all_of(all));
        loop {
            match shrink.poll(hotplug, &mut NoHooks, Budget::UNLIMITED) {
                Shrunk::Ready(removal) => hotplug.commit_remove(removal).unwrap(),
                Shrunk::Working => {}
                Shrunk::Done { left, .. } => break assert_eq!(left, 0),
            }
        }
        hotplug.withdraw(region).expect("absent");
        assert_eq!(hotplug.region_node(region), None);
    });
}

#[test]
fn a_removal_is_cut_in_two() {
    with(|hotplug| {
        let all = range(BOOT, 2 * SECTION);
        hotplug.announce(all).expect("room");
        hotplug.add(all).expect("announced");
        let removal = hotplug.prepare_remove(all).expect("offline");
        let (gone, stays) = removal.split_at(pfn(BOOT + BLOCK + 1)).expect("keeps nothing");
        assert_eq!(
            [gone.range(), stays.range()].map(PfnRange::frames),
            [BLOCK, 2 * SECTION - BLOCK]
        );
        let (gone_range, stays_range) = (gone.range(), stays.range());
        hotplug.commit_remove(gone).unwrap();
        hotplug.abandon_remove(stays, &mut NoHooks).unwrap();
        let state = |range: PfnRange| hotplug.state_at(range.start(), range.end());
        assert_eq!(state(gone_range), (gone_range, State::Absent));
        assert_eq!(state(stays_range), (stays_range, State::Offline));
    });
}
