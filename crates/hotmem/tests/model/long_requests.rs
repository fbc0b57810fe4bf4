//! Starts, polls and cancels requests to take memory offline and to shrink, between other
//! operations.

use crate::machine::Machine;
use crate::model::{Block, FrameState, Model, SIZE};
use crate::model_request::ModelRequest;
use hotmem::{
    Blocker, BlockerKind, Budget, Offline, OnlineType, PfnRange, Progress, RangeError,
    RangeErrorKind, Shrink, ShrinkOptions,
};
use hotmem_testkit::forwarding::with_kernel;
use hotmem_testkit::{Cpus, PAGEBLOCK, SECTION, numbers, range};

pub(crate) enum LongRequest<'f> {
    Offline {
        request: Offline<'f, Cpus>,
        range: PfnRange,
    },
    Shrink {
        request: Shrink<'f, Cpus>,
        /// The memory that the request has not passed yet.
        range: PfnRange,
        /// The whole range of the request, if it is persistent.
        persistent_range: Option<PfnRange>,
        unit: u64,
        max_removal: u64,
        frames_left: u64,
        /// Whether the request was never polled.
        is_new: bool,
        /// Whether the request was pending or idle, and has returned no removal since. Then the next
        /// removal may be the unit that it keeps isolated, and it still looks at the memory above.
        was_pending: bool,
        /// The pageblocks that the request has taken offline, but has not returned as a removal
        /// yet.
        offlined_blocks: Vec<u64>,
    },
    /// A shrink that is over, and the blocker that it met.
    Over {
        request: Shrink<'f, Cpus>,
        blocker: Option<Blocker>,
    },
}

impl<'f> Machine<'f> {
    pub(crate) fn request(&mut self) {
        match self.model.rng.u8(..10) {
            0 if self.requests.len() < self.profile.max_requests => {
                let online = |block: &Block| block.online;
                let requested = match self.model.rng.u8(..5) {
                    0 => Some(self.model.random_blocks(4)),
                    _ => self.model.random_run(3 * SECTION / PAGEBLOCK, online),
                };
                if let Some(requested) = requested {
                    self.start_offline(requested);
                }
            }
            1 if self.requests.len() < self.profile.max_requests => self.start_shrink(),
            2 => self.cancel(),
            _ => self.poll(),
        }
    }

    pub(crate) fn start_offline(&mut self, requested: PfnRange) {
        let answer = self.hotplug.offline(requested);
        let model = &mut self.model;
        model.trace(|| format!("offline {requested:?}: {:?}", answer.as_ref().err()));
        let expected = if requested.is_empty() || !requested.is_aligned(PAGEBLOCK) {
            Some(RangeError { range: requested, kind: RangeErrorKind::Unaligned })
        } else if !model.in_one_region(requested) {
            Some(RangeError { range: requested, kind: RangeErrorKind::NotOnline })
        } else {
            let offline = model.first_wrong(requested, [|block| !block.online]);
            offline.map(|(_, block)| RangeError { range: block, kind: RangeErrorKind::NotOnline })
        };
        match answer {
            Ok(request) => {
                assert_eq!(expected, None);
                self.requests.push(LongRequest::Offline { request, range: requested });
            }
            Err(error) => assert_eq!(Some(error), expected),
        }
    }

    fn start_shrink(&mut self) {
        let rng = &mut self.model.rng;
        let unit = PAGEBLOCK << rng.u32(..=(4 * SECTION / PAGEBLOCK).ilog2());
        let frames = rng.u64(..6 * SECTION);
        let max_run_frames = if rng.bool() { u64::MAX } else { rng.u64(..3 * SECTION) };
        let within = match rng.u8(..3) {
            0 => range(0, SIZE),
            1 => range(rng.u64(..SIZE), SIZE),
            _ => self.model.regions[self.model.rng.usize(..self.model.regions.len())].range,
        };
        let is_persistent = self.model.rng.u8(..3) == 0;
        self.shrink(
            within,
            ShrinkOptions { frames, unit, max_run_frames, is_persistent, ..within.into() },
        );
    }

    pub(crate) fn shrink_range(
        &mut self,
        within: PfnRange,
        frames: u64,
        unit: u64,
        max_run_frames: u64,
    ) {
        self.shrink(within, ShrinkOptions { frames, unit, max_run_frames, ..within.into() });
    }

    fn shrink(&mut self, within: PfnRange, options: ShrinkOptions) {
        let ShrinkOptions { frames, unit, max_run_frames, is_persistent, .. } = options;
        self.model.trace(|| format!("shrink {options:?}"));
        self.requests.push(LongRequest::Shrink {
            request: Shrink::new(options),
            range: within,
            persistent_range: is_persistent.then_some(within),
            unit,
            max_removal: (max_run_frames / unit * unit).max(unit),
            frames_left: frames / unit * unit,
            is_new: true,
            was_pending: false,
            offlined_blocks: vec![],
        });
    }

    fn random_request(&mut self) -> Option<usize> {
        let count = self.requests.len();
        (count > 0).then(|| self.model.rng.usize(..count))
    }

    pub(crate) fn poll(&mut self) {
        let Some(index) = self.random_request() else { return };
        let budget = match self.model.rng.u8(..4) {
            0 => Budget { pageblocks: 0 },
            1 => Budget { pageblocks: 1 },
            2 => Budget { pageblocks: self.model.rng.u64(..100) },
            _ => Budget::UNLIMITED,
        };
        match self.requests.swap_remove(index) {
            LongRequest::Offline { request, range } => self.poll_offline(request, range, budget),
            shrink @ LongRequest::Shrink { .. } => self.poll_shrink(shrink, budget),
            LongRequest::Over { request, blocker } => self.poll_over(request, blocker, budget),
        }
        self.model.count_new_metadata();
    }

    fn poll_offline(&mut self, mut request: Offline<'f, Cpus>, range: PfnRange, budget: Budget) {
        self.model.begin_with(request.parked_range());
        let progress = request.poll(&mut self.hotplug, &mut self.model, budget);
        self.model.record_recalls();
        let model = &mut self.model;
        model.count_new_metadata();
        model.trace(|| format!("polled offline {range:?}: {progress:?}"));
        match progress {
            Progress::Ready(done) => {
                assert_eq!(done, range);
                assert!(model.all_blocks_are(range, |block| !block.online));
                return;
            }
            Progress::Working => assert_ne!(budget, Budget::UNLIMITED),
            Progress::Pending(blocker) => model.check_blocker(blocker, range),
            Progress::Idle => panic!("a request that was not done is idle"),
        }
        self.requests.push(LongRequest::Offline { request, range });
    }

    fn poll_shrink(&mut self, mut state: LongRequest<'f>, budget: Budget) {
        let LongRequest::Shrink {
            request,
            range: within,
            persistent_range,
            unit,
            max_removal,
            frames_left,
            is_new,
            was_pending,
            offlined_blocks,
        } = &mut state
        else {
            return;
        };
        self.model.offlined_by_shrink = Some(std::mem::take(offlined_blocks));
        self.model.begin_with(request.parked_range());
        let progress = with_kernel(&mut self.hotplug, &mut self.model, |hotplug, hooks| {
            request.poll(hotplug, hooks, budget)
        });
        *offlined_blocks = self.model.offlined_by_shrink.take().unwrap_or_default();
        self.model.record_recalls();
        self.drop_onlined(offlined_blocks);
        let model = &mut self.model;
        model.count_new_metadata();
        model.trace(|| format!("polled shrink of {within:?}: {progress:?}"));
        match progress {
            Progress::Ready(removal) => {
                let going = removal.range();
                assert!(within.covers(going) && going.is_aligned(*unit) && !going.is_empty());
                assert!(model.in_one_region(going), "{going:?} cannot be added again");
                assert!(going.frames() <= *max_removal && going.frames() <= *frames_left);
                let is_going = |number| going.overlaps(range(number * PAGEBLOCK, PAGEBLOCK));
                offlined_blocks.retain(|&number| !is_going(number));
                let is_below = |&number: &u64| number * PAGEBLOCK < going.start().number();
                assert!(offlined_blocks.iter().all(is_below));
                assert!(
                    model.all_blocks_are(going, |block| !block.online && block.has_prepared_change)
                );
                *frames_left -= going.frames();
                if !std::mem::take(was_pending) {
                    // The shrink does not look at memory above the removal again.
                    *within = within.split_at(going.start()).0;
                }
                self.record_removal(removal, true);
            }
            Progress::Working => assert_ne!(budget, Budget::UNLIMITED),
            Progress::Pending(_) | Progress::Idle => {
                assert!(offlined_blocks.is_empty());
                assert_eq!(request.frames_left(), *frames_left);
                let blocker = hotmem_testkit::blocker_of(progress);
                assert!(blocker.is_none_or(|blocker| blocker.kind != BlockerKind::Busy));
                // Do not check a veto, nor a blocker that an earlier poll may have found: the machine
                // may have changed since.
                let is_current =
                    |blocker: &Blocker| *is_new && !matches!(blocker.kind, BlockerKind::Veto(_));
                if let Some(blocker) = blocker.filter(is_current) {
                    assert!(within.covers(blocker.range), "{blocker:?}");
                    model.check_blocker(blocker, blocker.range.align_outward(*unit));
                }
                let Some(range) = *persistent_range else {
                    if let LongRequest::Shrink { request, .. } = state
                        && self.model.rng.bool()
                    {
                        self.requests.push(LongRequest::Over { request, blocker });
                    }
                    return;
                };
                *within = range;
                *was_pending = true;
            }
        }
        *is_new = false;
        self.requests.push(state);
    }

    /// Polls a shrink that is over, which must change nothing, although the machine has changed.
    fn poll_over(
        &mut self,
        mut request: Shrink<'f, Cpus>,
        blocker: Option<Blocker>,
        budget: Budget,
    ) {
        let frames_left = request.frames_left();
        let progress = with_kernel(&mut self.hotplug, &mut self.model, |hotplug, hooks| {
            request.poll(hotplug, hooks, budget)
        });
        self.model.trace(|| format!("polled a shrink that is over: {progress:?}"));
        assert!(matches!(progress, Progress::Idle | Progress::Pending(_)), "{progress:?}");
        assert_eq!(hotmem_testkit::blocker_of(progress), blocker);
        assert_eq!(request.frames_left(), frames_left);
        if self.model.rng.bool() {
            self.requests.push(LongRequest::Over { request, blocker });
        }
    }

    /// Drops from `offlined_blocks` the pageblocks that the shrink has put online again, because it
    /// could not return them as a removal. Checks that all others are still held.
    fn drop_onlined(&mut self, offlined_blocks: &mut Vec<u64>) {
        let is_online =
            |machine: &Self, number: &u64| machine.model.blocks[*number as usize].online;
        if !offlined_blocks.iter().any(|number| is_online(self, number)) {
            return;
        }
        offlined_blocks.retain(|&number| {
            let block = range(number * PAGEBLOCK, PAGEBLOCK);
            let held = Err(RangeError { range: block, kind: RangeErrorKind::Held });
            let is_held = !is_online(self, &number)
                && self.hotplug.online(block, OnlineType::Offline, &mut self.model) == held;
            if !is_held {
                let block = &mut self.model.blocks[number as usize];
                assert!(block.online);
                block.has_prepared_change = false;
            }
            is_held
        });
    }

    /// Cancels a random request.
    pub(crate) fn cancel(&mut self) {
        let Some(index) = self.random_request() else { return };
        let request = self.requests.swap_remove(index);
        match request {
            LongRequest::Offline { request, range } => {
                self.model.trace(|| format!("cancel offline {range:?}"));
                self.model.begin_with(request.parked_range());
                request.cancel(&mut self.hotplug, &mut self.model);
            }
            LongRequest::Over { request, .. } => {
                request.cancel(&mut self.hotplug, &mut self.model);
            }
            LongRequest::Shrink { request, range: within, offlined_blocks, .. } => {
                self.model.trace(|| format!("cancel shrink {within:?}"));
                self.model.begin_with(request.parked_range());
                request.cancel(&mut self.hotplug, &mut self.model);
                for number in offlined_blocks {
                    let block = &mut self.model.blocks[number as usize];
                    assert!(block.online);
                    // The hook `onlined` was called for the pageblock.
                    block.has_prepared_change = false;
                }
            }
        }
        self.model.count_new_metadata();
    }
}

impl Model<'_> {
    /// Records which requests have lost their isolated memory to an allocation since the last call.
    pub(crate) fn record_recalls(&mut self) {
        let parked: Vec<_> = self.frames.parked_ranges().collect();
        for range in std::mem::replace(&mut self.parked, parked) {
            if !self.parked.contains(&range) {
                self.trace(|| format!("recalled {range:?}"));
                self.blocks_in(range).iter_mut().for_each(|block| block.recalled_requests += 1);
            }
        }
    }

    /// Records that a request goes on with the memory that it has parked, or finds it gone.
    fn begin_with(&mut self, parked: Option<PfnRange>) {
        self.record_recalls();
        let is_there = parked.is_some_and(|range| self.parked.contains(&range));
        self.parked.retain(|&range| Some(range) != parked);
        self.taken_back = parked.filter(|_| !is_there);
    }

    /// Returns whether this metadata will still be needed when `removed_range` is offline.
    fn is_needed(&self, metadata: PfnRange, removed_range: PfnRange) -> bool {
        let removed_range = removed_range.intersection(metadata.align_outward(SECTION));
        let mut entries = self.frames.metadata().filter(|entry| entry.frames.overlaps(metadata));
        entries.any(|entry| {
            let described = entry.describes;
            let is_words_or_record = described.is_empty() || described.frames() > SECTION;
            let is_divided = |block: PfnRange| {
                let online = self.block_of(block.start().number()).online;
                online && !self.holds_descriptors(block) && !removed_range.covers(block)
            };
            // Bitmaps in boot memory last as long as the words of their section.
            let lasts = self.all_blocks_are(entry.frames, |block| block.is_boot);
            is_words_or_record || lasts || described.chunks(PAGEBLOCK).any(is_divided)
        })
    }

    /// Checks that the blocker that the engine returned does block the request.
    fn check_blocker(&self, blocker: Blocker, within: PfnRange) {
        let Blocker { range: named, kind } = blocker;
        assert!(within.covers(named) && !named.is_empty(), "{blocker:?}");
        let any_frame = |is: fn(&FrameState) -> bool| {
            numbers(named).any(|frame| is(&self.frame_states[frame as usize]))
        };
        let one = ModelRequest { movable: true, ..ModelRequest::frames(1) };
        let does_block = match kind {
            BlockerKind::Unmovable(_) => any_frame(|frame| match frame {
                FrameState::Used(tag) => !tag.movable,
                other => *other == FrameState::Hole,
            }),
            BlockerKind::Retry => self.retry_percent > 0 || !self.can_grant(&one),
            BlockerKind::BootMemory => self.all_blocks_are(named, |block| block.is_boot),
            BlockerKind::Poisoned => {
                let is_used = any_frame(|frame| matches!(frame, FrameState::Used(_)));
                named.frames() == 1 && self.has_poison(named) && is_used
            }
            BlockerKind::Metadata if self.holds_descriptors(named) => {
                self.first_needed_descriptors(named, named).is_some()
            }
            BlockerKind::Metadata => {
                !any_frame(|frame| *frame != FrameState::Metadata) && self.is_needed(named, within)
            }
            BlockerKind::HeldByAnother => {
                self.all_blocks_are(named, |block| block.token || block.agreed_requests > 0)
            }
            BlockerKind::Reporting => self.all_blocks_are(named, |block| block.reporting),
            BlockerKind::Veto(_) => self.last_veto == Some(named),
            BlockerKind::NotEnoughFree { live, free } => live > free,
            BlockerKind::NotOnline => self.all_blocks_are(named, |block| !block.online),
            // The kernel migrates allocated frames, and pinned memory can go offline.
            BlockerKind::Allocated | BlockerKind::Pinned => false,
            // The test has no other thread and no other machine.
            BlockerKind::Busy | BlockerKind::Foreign => false,
            // The test's mapping keeps its tables.
            BlockerKind::NoTables => false,
        };
        assert!(does_block, "{blocker:?} in {within:?}");
    }
}
