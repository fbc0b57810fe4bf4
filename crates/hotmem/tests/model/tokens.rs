//! Isolates memory by tokens of the test. Releases the memory of a token, marks it as reported, or
//! takes it offline.

use crate::machine::Machine;
use crate::model::{Block, FrameState};
use hotmem::{Blocker, BlockerKind, Isolation, PfnRange, RangeError, RangeErrorKind};
use hotmem_testkit::{Cpus, PAGEBLOCK, SECTION, numbers, pfn};

pub(crate) type Token<'f> = Isolation<'f, Cpus>;

impl<'f> Machine<'f> {
    pub(crate) fn isolate(&mut self) {
        if !self.tokens.is_empty() && self.model.rng.bool() {
            return self.use_token();
        }
        let online = |block: &Block| block.online && !block.is_held();
        let requested = match self.model.rng.u8(..5) {
            0 => Some(self.model.random_blocks(4)),
            _ => self.model.random_run(2 * SECTION / PAGEBLOCK, online),
        };
        if let Some(requested) = requested
            && self.tokens.len() < 4
        {
            self.isolate_range(requested);
        }
    }

    pub(crate) fn isolate_range(&mut self, requested: PfnRange) {
        let model = &mut self.model;
        let answer = model.frames.isolate(requested);
        model.trace(|| format!("isolate {requested:?}: {answer:?}"));
        assert_eq!(model.count_new_metadata(), 0);
        match answer {
            Ok(token) => {
                assert!(!requested.is_empty() && requested.is_aligned(PAGEBLOCK));
                assert_eq!(token.range(), requested);
                assert!(model.all_blocks_are(requested, |block| block.online && !block.is_held()));
                model.blocks_in(requested).iter_mut().for_each(|block| block.token = true);
                self.tokens.push(token);
            }
            Err(RangeError { range, kind: RangeErrorKind::Unaligned }) => {
                assert!(range == requested && (range.is_empty() || !range.is_aligned(PAGEBLOCK)));
            }
            Err(RangeError { range, kind: RangeErrorKind::NotOnline }) => {
                assert!(requested.covers(range));
                assert!(
                    !model.in_one_region(range)
                        || model.all_blocks_are(range, |block| !block.online)
                );
            }
            Err(RangeError { range, kind: RangeErrorKind::Isolated }) => {
                assert!(requested.covers(range) && range.frames() == PAGEBLOCK);
                assert!(model.all_blocks_are(range, |block| block.online
                    && block.is_held()
                    && !block.reporting));
            }
            Err(RangeError { range, kind: RangeErrorKind::Reporting }) => {
                assert!(requested.covers(range) && range.frames() == PAGEBLOCK);
                assert!(model.all_blocks_are(range, |block| block.reporting));
            }
            Err(error) => panic!("unexpected refusal of an isolation: {error}"),
        }
    }

    fn use_token(&mut self) {
        let model = &mut self.model;
        let token = self.tokens.swap_remove(model.rng.usize(..self.tokens.len()));
        let held = token.range();
        match model.rng.u8(..6) {
            0 => {
                let at = pfn(model.rng.u64(numbers(held)));
                let (low, high) = token.split_at(at);
                assert!(low.range().end() == high.range().start() && low.range().end() <= at);
                let parts = [low, high].into_iter().filter(|part| !part.range().is_empty());
                self.tokens.extend(parts);
            }
            1 => {
                let in_use = token.in_use();
                self.tokens.push(token);
                self.check_in_use(held, in_use);
            }
            2 => {
                // Check before the token is given up: then the engine may allocate metadata in the
                // range.
                let in_use = token.in_use();
                self.check_in_use(held, in_use);
                let remaining = token.mark_reported();
                self.model.trace(|| format!("report {held:?}: {remaining:?}"));
                let pinned = held
                    .chunks(PAGEBLOCK)
                    .find(|part| self.reporting.pins.iter().any(|pin| pin.overlaps(*part)));
                let expected_blocker =
                    pinned.map(|range| Blocker { range, kind: BlockerKind::Pinned }).or(in_use);
                assert_eq!(remaining.as_ref().err().map(|(_, blocker)| *blocker), expected_blocker);
                match remaining {
                    Ok(()) => {
                        for part in held.chunks(PAGEBLOCK) {
                            let reported = !self.model.holds_descriptors(part);
                            let block = &mut self.model.blocks_in(part)[0];
                            (block.token, block.is_reported) = (false, reported);
                        }
                    }
                    Err((token, _)) => self.tokens.push(token),
                }
            }
            // Not while a request that has lost this memory is still to be told so: the kernel could not
            // tell which of the two has gone offline.
            3 if model.all_blocks_are(held, |block| block.agreed_requests == 0) => {
                let remaining = self.hotplug.take_offline(token, &mut self.model);
                let model = &mut self.model;
                model.trace(|| format!("take offline {held:?}: {remaining:?}"));
                match remaining {
                    Ok(range) => {
                        assert_eq!(range, held);
                        assert!(model.all_blocks_are(held, |block| !block.online));
                    }
                    Err((token, in_use)) => {
                        self.tokens.push(token);
                        self.check_in_use(held, Some(in_use));
                    }
                }
            }
            _ => {
                token.release();
                model.blocks_in(held).iter_mut().for_each(|block| block.token = false);
            }
        }
        self.model.count_new_metadata();
    }

    /// Checks the frames in use that a token names, or that there are none.
    fn check_in_use(&mut self, held: PfnRange, in_use: Option<Blocker>) {
        let model = &mut self.model;
        model.count_new_metadata();
        let all_are = |range: PfnRange, is: fn(&FrameState) -> bool| {
            numbers(range).all(|frame| is(&model.frame_states[frame as usize]))
        };
        match in_use.map(|Blocker { range, kind }| (range, kind)) {
            None => {
                assert!(all_are(held, |frame| frame.is_removable()), "{held:?}");
            }
            Some((used, BlockerKind::Allocated)) => {
                assert!(held.covers(used) && !used.is_empty());
                assert!(all_are(used, |frame| matches!(frame, FrameState::Used(_))), "{used:?}");
                assert!(!model.has_poison(used), "{used:?}");
            }
            Some((frames, BlockerKind::Metadata)) => {
                assert!(held.covers(frames) && !frames.is_empty());
                assert!(all_are(frames, |frame| *frame == FrameState::Metadata), "{frames:?}");
            }
            Some((frames, BlockerKind::Unmovable(_))) => {
                assert!(held.covers(frames) && !frames.is_empty());
                assert!(all_are(frames, |frame| *frame == FrameState::Hole), "{frames:?}");
            }
            Some((frame, BlockerKind::Poisoned)) => {
                assert!(held.covers(frame) && model.has_poison(frame));
                assert!(all_are(frame, |frame| matches!(frame, FrameState::Used(_))), "{frame:?}");
            }
            Some(other) => {
                panic!("no other thread or instance exists, but the token returned {other:?}")
            }
        }
    }
}
