//! Attaches and detaches device memory, and converts it to RAM and back.

use crate::model_request::ModelRequest;
use crate::world::{Block, Machine, World};
use hotmem::{AddError, AllocError, OnlineType, PfnRange, RangeError, RangeErrorKind};
use hotmem_testkit::RawReserved as _;
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers, range};

impl Machine<'_> {
    pub(crate) fn reconfigure(&mut self) {
        let longest = 3 * SECTION / PAGEBLOCK;
        let device = |block: &Block| block.device;
        let offline = |block: &Block| block.present && !block.online && !block.in_transit;
        let world = &mut self.world;
        let anything = world.rng.u8(..10) == 0;
        let operation = world.rng.u8(..4);
        let requested = match (anything, operation) {
            (true, _) => Some(world.random_blocks(4)),
            (_, 0) => world.random_run(longest, offline),
            _ => world.random_run(longest, device),
        };
        match (requested, operation) {
            (None, _) => {}
            (Some(requested), 0) => self.ram_to_device(requested),
            (Some(requested), 1) => self.detach_range(requested),
            (Some(requested), _) => self.device_to_ram(requested),
        }
    }

    pub(crate) fn detach_range(&mut self, requested: PfnRange) {
        let world = &mut self.world;
        let expected = world.expected_device_error(requested);
        let answer =
            with_kernel(&mut self.hotplug, world, |hotplug, _| hotplug.detach_raw(requested));
        world.trace(|| format!("detach {requested:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            world.forget_poison(requested);
            world.blocks_in(requested).iter_mut().for_each(|block| block.device = false);
        }
        world.sync_metadata();
    }

    pub(crate) fn device_to_ram(&mut self, requested: PfnRange) {
        use OnlineType::{AsBefore, Kernel, Movable, Offline, Online};
        let world = &mut self.world;
        let kind = [Offline, Online, Movable, Kernel, AsBefore][world.rng.usize(..5)];
        let frames = world.frames_to_describe(requested);
        let expected = world
            .expected_device_error(requested)
            .map(AddError::Range)
            .or_else(|| world.expected_ram_error(requested, kind));
        let chosen = expected.is_none().then(|| self.movable_by_policy(requested));
        let world = &mut self.world;
        world.last_veto = None;
        if expected.is_none() {
            world.set_device(requested, false);
        }
        let answer = with_kernel(&mut self.hotplug, world, |hotplug, hooks| {
            hotplug.device_to_ram_raw(requested, kind, hooks)
        });
        world.trace(|| format!("to RAM {requested:?} {kind:?}: {answer:?}"));
        assert!(world.sync_metadata() == 0 || frames > 0);
        if let Err(AddError::Range(RangeError { range, kind: RangeErrorKind::Vetoed(_) })) = answer
        {
            assert_eq!((expected, world.last_veto), (None, Some(range)));
            assert!(world.all_blocks_are(requested, |block| !block.movable));
            world.set_device(requested, true);
            return;
        }
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            let pageblocks = world.zones_in(requested).len();
            let movable = match kind {
                Online => chosen.expect("the call was not expected to fail"),
                kind => vec![kind == Movable; pageblocks],
            };
            assert_eq!(world.zones_in(requested), movable);
            assert!(world.all_blocks_are(requested, |block| block.online != (kind == Offline)));
        }
    }

    pub(crate) fn ram_to_device(&mut self, requested: PfnRange) {
        let world = &mut self.world;
        let expected = world.expected_removal_error(requested);
        let answer =
            with_kernel(&mut self.hotplug, world, |hotplug, _| hotplug.ram_to_device(requested));
        world.trace(|| format!("to a device {requested:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            world.set_device(requested, true);
            world.blocks_in(requested).iter_mut().for_each(|block| block.movable = false);
            world.assert_untouched(requested);
        }
    }
}

impl World<'_> {
    fn expected_device_error(&self, requested: PfnRange) -> Option<RangeError> {
        if !Self::is_whole(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::Unaligned });
        }
        if !self.in_one_region(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::NotDevice });
        }
        let other: fn(&Block) -> bool = |block| !block.device;
        self.first_wrong(requested, [other])
            .map(|(_, block)| RangeError { range: block, kind: RangeErrorKind::NotDevice })
    }

    /// Returns the error that the engine must return, without a call of hooks, when device memory
    /// cannot become RAM.
    fn expected_ram_error(&self, requested: PfnRange, kind: OnlineType) -> Option<AddError> {
        let refused = |error| Some(AddError::Range(error));
        let poisoned =
            |frame| refused(RangeError { range: range(frame, 1), kind: RangeErrorKind::Poisoned });
        if let Some(frame) = self.poison_under_descriptors(requested) {
            return poisoned(frame);
        }
        if let Some(leaving_block) = self.leaving_descriptors(requested) {
            return refused(RangeError { range: leaving_block, kind: RangeErrorKind::Held });
        }
        let frames = self.frames_to_describe(requested);
        let request = ModelRequest::frames(frames);
        if frames > 0 && !self.can_grant(&request) {
            let out = self.is_out_for(&request);
            let error = if out { AllocError::Busy } else { AllocError::OutOfMemory };
            return Some(AddError::NoTables { frames, error });
        }
        let frame = self.poisoned.range(numbers(requested)).next().copied();
        frame.filter(|_| kind != OnlineType::Offline).and_then(poisoned)
    }

    fn set_device(&mut self, range: PfnRange, device: bool) {
        for block in self.blocks_in(range) {
            (block.present, block.device) = (!device, device);
        }
    }
}
