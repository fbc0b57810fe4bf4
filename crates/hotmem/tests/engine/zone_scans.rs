//! Compares scans of zones with the state of every pageblock.

use fastrand::Rng;
use hotmem::*;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, numbers, pfn, range};
use std::collections::{BTreeMap, BTreeSet};

const BOOT_FRAMES: u64 = 2 * SECTION;
const HOTPLUG_FRAMES: u64 = 6 * SECTION;

/// The node of all hotplugged memory.
const HOT_NODE: NodeId = NodeId(1);

/// Returns the pageblocks of hotplugged memory whose state says that they are online in `zone`.
fn find_online(hotplug: &Hotplug<'_, OneCpu>, zone: Zone) -> BTreeSet<u64> {
    let blocks = range(BOOT_FRAMES, HOTPLUG_FRAMES).chunks(PAGEBLOCK);
    let online = blocks.filter(|block| {
        hotplug.state_at(block.start(), block.end()) == (*block, State::from(zone))
    });
    online.map(|block| block.start().number()).collect()
}

#[test]
fn a_scan_agrees_with_a_query_of_every_pageblock() {
    let (frames, memory) = (Frames::new(OneCpu), Memory::new(BOOT_FRAMES + HOTPLUG_FRAMES));
    let mut hotplug = hotmem_testkit::boot(&frames, &memory, BOOT_FRAMES);
    // Bitmap frames are allocated from a pageblock of boot memory that stays divided.
    hotmem_testkit::divide_two_pageblocks(&frames);
    // Two regions that share a section.
    let middle = BOOT_FRAMES + 3 * SECTION + PAGEBLOCK;
    for region in [
        range(middle, BOOT_FRAMES + HOTPLUG_FRAMES - middle),
        range(BOOT_FRAMES, middle - BOOT_FRAMES),
    ] {
        hotplug.announce(Announce { node: HOT_NODE, ..region.into() }).unwrap();
        hotplug.add(region).unwrap();
        hotplug.online(region, OnlineType::Movable, &mut NoHooks).unwrap();
    }
    let mut rng = Rng::with_seed(3);
    let mut used = BTreeMap::new();
    let mut outcomes = [0; 2];
    for round in 0..300 {
        if round % 3 == 0 {
            let start = rng.u64(BOOT_FRAMES..BOOT_FRAMES + HOTPLUG_FRAMES);
            let request = AllocRequest::frames(rng.u64(1..=PAGEBLOCK / 2)).at(pfn(start)).movable();
            if let Ok(allocated) = frames.alloc_range(request) {
                for frame in numbers(allocated) {
                    *used.entry(frame / PAGEBLOCK * PAGEBLOCK).or_insert(0) += 1;
                }
            }
        }
        let start = BOOT_FRAMES + rng.u64(..HOTPLUG_FRAMES / PAGEBLOCK) * PAGEBLOCK;
        let block = range(start, PAGEBLOCK);
        if round >= 20 && !used.contains_key(&start) {
            match hotplug.state_at(block.start(), block.end()).1 {
                State::Offline => {
                    let kind = [OnlineType::Movable, OnlineType::Kernel][rng.usize(..2)];
                    hotplug.online(block, kind, &mut NoHooks).unwrap();
                }
                _ => {
                    let mut offline = hotplug.offline(block).unwrap();
                    let done = offline.poll(&mut hotplug, &mut NoHooks, Budget::UNLIMITED);
                    assert_eq!(done, Progress::Ready(block));
                }
            }
        }
        for zone in Zone::ALL {
            let mut scanned = BTreeMap::new();
            let mut runs = 0;
            hotplug.online_runs(HOT_NODE, zone, |run| {
                runs += 1;
                hotplug.occupancy(run, |block, used| {
                    assert!(run.covers(block) && block.frames() == PAGEBLOCK);
                    assert_eq!(scanned.insert(block.start().number(), used), None);
                });
            });
            let online = find_online(&hotplug, zone);
            assert!(scanned.keys().copied().eq(online.iter().copied()));
            for (block, &in_use) in &scanned {
                assert_eq!(in_use, used.get(block).copied().unwrap_or(0), "{block:#x}");
            }
            let contiguous = hotplug.zone(HOT_NODE, zone).contiguous;
            assert!(!contiguous || runs == 1);
            outcomes[usize::from(contiguous)] += 1;
        }
    }
    assert!(
        outcomes[0] > 10 && outcomes[1] > 10,
        "zones must be contiguous and not contiguous often: {outcomes:?}"
    );
}
