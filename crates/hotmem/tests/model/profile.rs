//! Chooses what a machine does more often than others, so that states that are rare on most machines
//! are normal on this one.

use hotmem_testkit::{PAGEBLOCK, SECTION};

/// How often a machine does what, and how much of it at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// How many of 100 operations on frames are allocations, while memory is being emptied and
    /// while it is being filled.
    pub allocations: [u8; 2],
    /// How many of 1000 operations poison a frame.
    pub poisonings: u32,
    /// How many of 24 operations of the reporter pin memory.
    pub pinnings: u8,
    pub max_pins: usize,
    /// The maximal number of requests to take memory offline and to shrink.
    pub max_requests: usize,
    /// How many of 4 prepared additions and removals are finished at once.
    pub finished_at_once: u8,
    /// The largest region that is announced, in pageblocks.
    pub max_region_blocks: u64,
}

impl Profile {
    const USUAL: Profile = Profile {
        allocations: [30, 70],
        poisonings: 5,
        pinnings: 1,
        max_pins: 4,
        max_requests: 3,
        finished_at_once: 2,
        max_region_blocks: 5 * SECTION / PAGEBLOCK,
    };
    const ALL: [Profile; 7] = [
        Profile::USUAL,
        // Nearly no frame is ever free.
        Profile { allocations: [60, 90], ..Profile::USUAL },
        // Each pageblock has poisoned frames soon.
        Profile { poisonings: 40, ..Profile::USUAL },
        Profile { pinnings: 8, max_pins: 40, ..Profile::USUAL },
        // Regions of one or two pageblocks: many of them lie in each section.
        Profile { max_region_blocks: 2, ..Profile::USUAL },
        // Many devices, each of which answers late.
        Profile { max_requests: 12, finished_at_once: 0, ..Profile::USUAL },
        // All of it.
        Profile {
            allocations: [60, 90],
            poisonings: 20,
            pinnings: 4,
            max_pins: 40,
            max_requests: 12,
            finished_at_once: 0,
            max_region_blocks: 3,
        },
    ];

    /// Returns the profile of the machine with this seed. Machines that follow each other have
    /// different profiles.
    pub(crate) fn of(seed: u64) -> Profile {
        let index = (seed % Self::ALL.len() as u64) as usize;
        Self::ALL[index]
    }
}
