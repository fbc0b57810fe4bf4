//! Makes invalid calls of every kind. Each must be refused, and change nothing.

use crate::ask::Ask;
use crate::world::{Machine, SIZE, World};
use hotmem::geometry::PFN_LIMIT;
use hotmem_testkit::{BLOCK, SECTION};

impl Machine<'_> {
    pub(crate) fn bad_request(&mut self) {
        let bad = self.world.some_bad_range();
        match self.world.rng.u8(..10) {
            0 => self.add_range_if_outside(bad),
            1 => self.online_range(bad),
            2 => self.remove_range(bad),
            8 => self.detach_range(bad),
            9 => self.device_to_ram(bad),
            3 => self.start_offline(bad),
            4 => self.isolate_range(bad),
            5 if bad.is_empty() || !bad.is_aligned(BLOCK) => self.announce_range(bad),
            _ => self.bad_wish(),
        }
    }

    fn add_range_if_outside(&mut self, bad: hotmem::PfnRange) {
        if !self.world.in_one_region(bad) || bad.is_empty() || !bad.is_aligned(BLOCK) {
            self.add_range(bad);
        }
    }

    fn bad_wish(&mut self) {
        let world = &mut self.world;
        let mut ask = world.some_ask();
        match world.rng.u8(..7) {
            0 => ask.frames = 0,
            1 => ask.align *= 3,
            2 => ask.align = 0,
            3 => ask.frames = PFN_LIMIT + world.rng.u64(1..=u64::MAX - PFN_LIMIT),
            4 => ask.align = 1 << world.rng.u32(41..64),
            5 => ask = Ask { align: SECTION, ..world.some_place(ask) },
            _ => ask = Ask { below: world.rng.u64(..SIZE), ..world.some_place(ask) },
        }
        world.alloc(&ask);
    }
}

impl World<'_> {
    fn some_place(&mut self, ask: Ask) -> Ask {
        Ask { at: Some(self.rng.u64(..SIZE)), node: None, ..ask }
    }
}
