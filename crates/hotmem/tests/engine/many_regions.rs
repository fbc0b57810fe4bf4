//! Tests that announcing a region costs little, however many regions there are.

use crate::instruction_count::{can_count, instructions};
use hotmem::*;
use hotmem_testkit::{Memory, PAGEBLOCK, SECTION, range};

const REGIONS: u64 = 10_000;
/// The environment variable that tells the process under valgrind how many regions there are.
const VARIABLE: &str = "HOTMEM_TEST_REGIONS";
const COUNTED: u64 = 100;

#[inline(never)]
fn counted_announcements(hotplug: &mut Hotplug<'_, OneCpu>, first: u64) {
    for n in first..first + COUNTED {
        // Regions that do not meet.
        hotplug.announce(range(SECTION + 2 * n * PAGEBLOCK, PAGEBLOCK)).unwrap();
    }
}

#[test]
fn an_announcement_costs_little_more_beside_ten_thousand_regions() {
    if let Ok(before) = std::env::var(VARIABLE) {
        let before: u64 = before.parse().unwrap();
        let (frames, memory) = (Frames::new(OneCpu), Memory::new(SECTION));
        let mut hotplug = hotmem_testkit::boot(&frames, &memory, SECTION);
        for n in 0..before {
            hotplug.announce(range(SECTION + 2 * n * PAGEBLOCK, PAGEBLOCK)).unwrap();
        }
        return counted_announcements(&mut hotplug, before);
    }
    if !can_count() {
        return;
    }
    let count = |before: u64| {
        let test = "many_regions::an_announcement_costs_little_more_beside_ten_thousand_regions";
        let counted = instructions(test, "counted_announcements", (VARIABLE, &before.to_string()));
        counted / COUNTED as f64
    };
    let (few, many) = (count(COUNTED), count(REGIONS));
    // So all ten thousand announcements take about a tenth of a second, in a debug build. A search of
    // all regions would take many times as many.
    assert!(many < 25_500.0, "{few} instructions with few regions, {many} with many");
}
