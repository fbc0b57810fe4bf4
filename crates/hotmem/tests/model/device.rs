//! Detaches device memory, and converts device memory to RAM and RAM to device memory.

use crate::machine::Machine;
use crate::model::{Block, Model, SIZE};
use crate::model_request::ModelRequest;
use hotmem::{AddError, AllocError, OnlineType, PfnRange, RangeError, RangeErrorKind};
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::{PAGEBLOCK, SECTION, numbers, range};

impl Machine<'_> {
    pub(crate) fn reconfigure(&mut self) {
        let longest = 3 * SECTION / PAGEBLOCK;
        let device = |block: &Block| block.device;
        let offline =
            |block: &Block| block.is_present && !block.online && !block.has_prepared_change;
        let model = &mut self.model;
        let is_arbitrary = model.rng.u8(..10) == 0;
        let operation = model.rng.u8(..4);
        let requested = match (is_arbitrary, operation) {
            (true, _) => Some(model.random_blocks(4)),
            (_, 0) => model.random_run(longest, offline),
            _ => model.random_run(longest, device),
        };
        match (requested, operation) {
            (None, _) => {}
            (Some(requested), 0) => self.ram_to_device(requested),
            (Some(requested), 1) => self.detach_range(requested),
            (Some(requested), _) => self.device_to_ram(requested),
        }
    }

    pub(crate) fn detach_range(&mut self, requested: PfnRange) {
        let model = &mut self.model;
        let expected = model.expected_device_error(requested);
        let answer =
            with_kernel(&mut self.hotplug, model, |hotplug, _| hotplug.detach_raw(requested));
        model.trace(|| format!("detach {requested:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            model.forget_poison(requested);
            model.blocks_in(requested).iter_mut().for_each(|block| block.device = false);
        }
        model.count_new_metadata();
    }

    pub(crate) fn device_to_ram(&mut self, requested: PfnRange) {
        use OnlineType::{AsBefore, Kernel, Movable, Offline, Online};
        let model = &mut self.model;
        let kind = [Offline, Online, Movable, Kernel, AsBefore][model.rng.usize(..5)];
        let frames = model.frames_for_descriptors(requested);
        let expected = model
            .expected_device_error(requested)
            .map(AddError::Range)
            .or_else(|| model.expected_ram_error(requested));
        let policy_choice = expected.is_none().then(|| self.movable_by_policy(requested));
        let model = &mut self.model;
        model.last_veto = None;
        // The hooks are asked before frames are allocated.
        let asks_hooks = matches!(expected, None | Some(AddError::NoTables { .. }));
        if asks_hooks {
            model.set_device(requested, false);
        }
        let answer = with_kernel(&mut self.hotplug, model, |hotplug, hooks| {
            hotplug.device_to_ram_raw(requested, kind, hooks)
        });
        model.trace(|| format!("to RAM {requested:?} {kind:?}: {answer:?}"));
        assert!(model.count_new_metadata() == 0 || frames > 0 || model.has_poison(requested));
        if let Err(AddError::Range(RangeError { range, kind: RangeErrorKind::Vetoed(_) })) = answer
        {
            assert_eq!((asks_hooks, model.last_veto), (true, Some(range)));
            assert!(model.all_blocks_are(requested, |block| !block.movable));
            model.set_device(requested, true);
            return;
        }
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_err() && asks_hooks {
            model.set_device(requested, true);
        }
        if answer.is_ok() {
            let pageblocks = model.zones_in(requested).len();
            let movable = match kind {
                Online => policy_choice.expect("the call was not expected to fail"),
                kind => vec![kind == Movable; pageblocks],
            };
            assert_eq!(model.zones_in(requested), movable);
            assert!(model.all_blocks_are(requested, |block| block.online != (kind == Offline)));
        }
    }

    pub(crate) fn ram_to_device(&mut self, requested: PfnRange) {
        let model = &mut self.model;
        let expected = model.expected_removal_error(requested);
        let answer =
            with_kernel(&mut self.hotplug, model, |hotplug, _| hotplug.ram_to_device(requested));
        model.trace(|| format!("to a device {requested:?}: {answer:?}"));
        assert_eq!(answer, expected.map_or(Ok(()), Err));
        if answer.is_ok() {
            model.set_device(requested, true);
            model.blocks_in(requested).iter_mut().for_each(|block| block.movable = false);
            model.assert_untouched(requested);
        }
    }
}

impl Model<'_> {
    fn expected_device_error(&self, requested: PfnRange) -> Option<RangeError> {
        if !Self::is_pageblocks(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::Unaligned });
        }
        if !self.in_one_region(requested) {
            return Some(RangeError { range: requested, kind: RangeErrorKind::NotDevice });
        }
        self.first_wrong(requested, [|block| !block.device])
            .map(|(_, block)| RangeError { range: block, kind: RangeErrorKind::NotDevice })
    }

    /// Returns the error by which the engine must refuse to convert device memory to RAM before it
    /// calls any hook.
    fn expected_ram_error(&self, requested: PfnRange) -> Option<AddError> {
        let refused = |error| Some(AddError::Range(error));
        let poisoned =
            |frame| refused(RangeError { range: range(frame, 1), kind: RangeErrorKind::Poisoned });
        if let Some(frame) = self.poison_under_descriptors(requested) {
            return poisoned(frame);
        }
        if let Some(leaving_block) = self.descriptors_being_removed(requested) {
            return refused(RangeError { range: leaving_block, kind: RangeErrorKind::Held });
        }
        let frames = self.frames_for_descriptors(requested);
        let request = ModelRequest::frames(frames);
        // The frames need not be contiguous, and an allocation recalls what requests have parked.
        let one = ModelRequest::frames(1);
        let free = (0..SIZE).filter(|&frame| self.is_free_for(frame, &one));
        let parked = self.frames.parked_ranges().flat_map(numbers);
        let recallable = parked.filter(|&frame| self.is_free_if_recalled(frame));
        if frames > (free.count() + recallable.count()) as u64 {
            let is_reporting = self.is_reported_memory_needed(&request);
            let error = if is_reporting { AllocError::Busy } else { AllocError::OutOfMemory };
            return Some(AddError::NoTables { frames, error });
        }
        None
    }

    fn set_device(&mut self, range: PfnRange, device: bool) {
        for block in self.blocks_in(range) {
            (block.is_present, block.device) = (!device, device);
        }
    }
}
