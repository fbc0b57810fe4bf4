//! Attaches and detaches device memory, and converts it to RAM and back.

use crate::model_request::ModelRequest;
use crate::world::{Block, Machine, World};
use hotmem::{AddError, AllocError, OnlineType, PfnRange, RangeError, RangeErrorKind};
use hotmem_testkit::RawReserved as _;
use hotmem_testkit::link::lend;
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers, range};

impl Machine<'_> {
    pub(crate) fn reconfigure(&mut self) {
        let longest = 3 * SECTION / PAGEBLOCK;
        let device = |block: &Block| block.device;
        let offline = |block: &Block| block.present && !block.online && !block.in_transit;
        let world = &mut self.world;
        let anything = world.rng.u8(..10) == 0;
        let what = world.rng.u8(..4);
        let wanted = match (anything, what) {
            (true, _) => Some(world.random_blocks(4)),
            (_, 0) => world.random_run(longest, offline),
            _ => world.random_run(longest, device),
        };
        match (wanted, what) {
            (None, _) => {}
            (Some(wanted), 0) => self.ram_to_device(wanted),
            (Some(wanted), 1) => self.detach_range(wanted),
            (Some(wanted), _) => self.device_to_ram(wanted),
        }
    }

    pub(crate) fn detach_range(&mut self, wanted: PfnRange) {
        let world = &mut self.world;
        let expected = world.device_refused(wanted);
        let answer = lend(&mut self.hotplug, world, |hotplug, _| hotplug.detach_raw(wanted));
        world.trace(|| format!("detach {wanted:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            world.forget_poison(wanted);
            world.blocks_in(wanted).iter_mut().for_each(|block| block.device = false);
        }
        world.sync_metadata();
    }

    pub(crate) fn device_to_ram(&mut self, wanted: PfnRange) {
        use OnlineType::{AsBefore, Kernel, Movable, Offline, Online};
        let world = &mut self.world;
        let kind = [Offline, Online, Movable, Kernel, AsBefore][world.rng.usize(..5)];
        let frames = world.frames_to_describe(wanted);
        let expected = world
            .device_refused(wanted)
            .map(AddError::Range)
            .or_else(|| world.ram_refused(wanted, kind));
        let chosen = expected.is_none().then(|| self.movable_by_policy(wanted));
        let world = &mut self.world;
        world.last_veto = None;
        if expected.is_none() {
            world.set_device(wanted, false);
        }
        let answer = lend(&mut self.hotplug, world, |hotplug, hooks| {
            hotplug.device_to_ram_raw(wanted, kind, hooks)
        });
        world.trace(|| format!("to RAM {wanted:?} {kind:?}: {answer:?}"));
        assert!(world.sync_metadata() == 0 || frames > 0);
        if let Err(AddError::Range(RangeError { range, kind: RangeErrorKind::Vetoed(_) })) = answer
        {
            assert_eq!((expected, world.last_veto), (None, Some(range)));
            assert!(world.all(wanted, |block| !block.movable));
            world.set_device(wanted, true);
            return;
        }
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            let pageblocks = world.zones_in(wanted).len();
            let movable = match kind {
                Online => chosen.expect("the call was not expected to fail"),
                kind => vec![kind == Movable; pageblocks],
            };
            assert_eq!(world.zones_in(wanted), movable);
            assert!(world.all(wanted, |block| block.online != (kind == Offline)));
        }
    }

    pub(crate) fn ram_to_device(&mut self, wanted: PfnRange) {
        let world = &mut self.world;
        let expected = world.remove_refused(wanted);
        let answer = lend(&mut self.hotplug, world, |hotplug, _| hotplug.ram_to_device(wanted));
        world.trace(|| format!("to a device {wanted:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            world.set_device(wanted, true);
            world.blocks_in(wanted).iter_mut().for_each(|block| block.movable = false);
            world.assert_untouched(wanted);
        }
    }
}

impl World<'_> {
    fn device_refused(&self, wanted: PfnRange) -> Option<RangeError> {
        if !Self::is_whole(wanted) {
            return Some(RangeError { range: wanted, kind: RangeErrorKind::Unaligned });
        }
        if !self.in_one_region(wanted) {
            return Some(RangeError { range: wanted, kind: RangeErrorKind::NotDevice });
        }
        let other: fn(&Block) -> bool = |block| !block.device;
        self.first_wrong(wanted, [other])
            .map(|(_, block)| RangeError { range: block, kind: RangeErrorKind::NotDevice })
    }

    /// Returns the error that the engine must return, without a call of hooks, when device memory
    /// cannot become RAM.
    fn ram_refused(&self, wanted: PfnRange, kind: OnlineType) -> Option<AddError> {
        let refused = |error| Some(AddError::Range(error));
        let poisoned =
            |frame| refused(RangeError { range: range(frame, 1), kind: RangeErrorKind::Poisoned });
        if let Some(frame) = self.poison_under_descriptors(wanted) {
            return poisoned(frame);
        }
        if let Some(leaving_block) = self.leaving_descriptors(wanted) {
            return refused(RangeError { range: leaving_block, kind: RangeErrorKind::Held });
        }
        let frames = self.frames_to_describe(wanted);
        let request = ModelRequest::frames(frames);
        if frames > 0 && !self.can_grant(&request) {
            let out = self.is_out_for(&request);
            let error = if out { AllocError::Busy } else { AllocError::OutOfMemory };
            return Some(AddError::NoTables { frames, error });
        }
        let frame = self.poisoned.range(numbers(wanted)).next().copied();
        frame.filter(|_| kind != OnlineType::Offline).and_then(poisoned)
    }

    fn set_device(&mut self, range: PfnRange, device: bool) {
        for block in self.blocks_in(range) {
            (block.present, block.device) = (!device, device);
        }
    }
}
