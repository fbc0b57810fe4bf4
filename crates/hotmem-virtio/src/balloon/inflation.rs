//! The balloon: inflates or deflates towards the size that the host requests, 256 frames in a
//! request.

use super::features::Features;
use super::memory::{Memory, Obstacle, WantedBack};
use super::message::Message;
use super::queues::Queue;
use super::status::{Counters, Failure, Pending, Status};
use super::turn::{Sent, Terms, Turn};
use crate::backoff::Backoff;
use core::time::Duration;
use hotmem::PfnRange;
use hotmem::geometry::PAGEBLOCK_FRAMES;

/// The balloon, and the memory that is being inflated or deflated.
#[derive(Debug)]
pub(super) struct Inflation {
    held: u64,
    target: u64,
    passage: Option<Passage>,
    sent: Option<Sent<PfnRange>>,
    may_deflate_on_oom: bool,
    /// The number of answers since `actual` was last written.
    answers_since_actual: u32,
    backoff: Backoff,
    /// The memory manager refused permanently: nothing to do until the host requests another size.
    blocked: bool,
    /// The number of changes of the target since the balloon last had its size.
    target_changes: u8,
    status: Status,
}

/// A piece of memory that is inflated or deflated request by request.
#[derive(Clone, Copy, Debug)]
struct Passage {
    outwards: bool,
    all: PfnRange,
    /// The part that is not sent yet.
    rest: PfnRange,
}

/// The number of frames taken from the memory manager at a time: most free memory is in pieces of
/// this size.
const PIECE_FRAMES: u64 = PAGEBLOCK_FRAMES as u64;
/// The number of changes of the target that are followed without a delay.
const MAX_TARGET_CHANGES: u8 = 8;
/// `actual` is written after this many answers, every 32 MiB, so that the host sees progress.
const ANSWERS_PER_ACTUAL: u32 = 32;

impl Inflation {
    /// Makes an empty balloon. A device that was used before may still report another size.
    pub(super) fn new(features: Features, target: u32) -> Inflation {
        Inflation {
            held: 0,
            target: target.into(),
            passage: None,
            sent: None,
            may_deflate_on_oom: features.contains(Features::DEFLATE_ON_OOM),
            answers_since_actual: 1,
            backoff: Backoff::default(),
            blocked: false,
            target_changes: 0,
            status: if target == 0 { Status::Settled } else { Status::Resizing },
        }
    }

    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn target(&self) -> u64 {
        self.target
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.sent.is_some_and(|sent| sent.is_overdue())
    }

    /// Reads the host's target.
    pub(super) fn observe(&mut self, now: Duration, target: u32) {
        if self.target == u64::from(target) {
            return;
        }
        self.target = target.into();
        self.blocked = false;
        if self.target_changes < MAX_TARGET_CHANGES {
            self.target_changes += 1;
            self.backoff.reset();
            self.status = Status::Resizing;
        } else if self.backoff.waiting(now).is_none() {
            self.backoff.failed(now);
            self.status = Status::Pending(Pending::TargetUnsteady);
        }
    }

    /// Handles an answer on the inflate (`outwards`) or the deflate queue. Returns whether it was
    /// expected.
    pub(super) fn used<M: Memory>(
        &mut self,
        outwards: bool,
        memory: &mut M,
        counters: &mut Counters,
    ) -> bool {
        let Some(passage) = self.passage.filter(|p| p.outwards == outwards) else { return false };
        let Some(piece) = self.sent.take() else { return false };
        let frames = piece.what.frames();
        if outwards {
            self.held += frames;
            counters.inflated = counters.inflated.wrapping_add(frames);
        } else {
            self.held -= frames;
            counters.deflated = counters.deflated.wrapping_add(frames);
        }
        self.answers_since_actual += 1;
        if passage.rest.is_empty() {
            self.passage = None;
            if !outwards {
                memory.deflated(passage.all);
            }
        }
        true
    }

    pub(super) fn next<M: Memory>(
        &mut self,
        now: Duration,
        terms: Terms,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Turn {
        if let Some(sent) = &mut self.sent {
            let outwards = self.passage.is_none_or(|passage| passage.outwards);
            let queue = if outwards { Queue::Inflate } else { Queue::Deflate };
            return sent.awaited(queue, now, terms, counters);
        }
        if self.answers_since_actual > ANSWERS_PER_ACTUAL {
            return self.write_actual();
        }
        if self.passage.is_none() {
            match self.next_piece(now, memory) {
                Turn::Again => {}
                // There is nothing else to do, so write `actual`.
                Turn::Wait(_) if self.answers_since_actual > 0 => return self.write_actual(),
                rest => return rest,
            }
        }
        self.go_on(now)
    }

    /// Sends the next part of the piece.
    fn go_on(&mut self, now: Duration) -> Turn {
        let Some(passage) = &mut self.passage else { return Turn::Again };
        let end = passage.rest.start().checked_add(Message::MOST_FRAMES);
        let (piece, rest) = passage.rest.split_at(end.unwrap_or(passage.rest.end()));
        passage.rest = rest;
        self.sent = Some(Sent::new(piece, now));
        Turn::Send(if passage.outwards { Message::Inflate(piece) } else { Message::Deflate(piece) })
    }

    /// Decides which piece to inflate or deflate next, if any.
    fn next_piece<M: Memory>(&mut self, now: Duration, memory: &mut M) -> Turn {
        let WantedBack { needed, in_the_way } = memory.wanted_back();
        if needed > 0 && self.may_deflate_on_oom && self.held > 0 {
            // Memory that was taken back must not be inflated again at once.
            self.backoff.failed(now);
            self.status = Status::Pending(Pending::Needed);
            return self.deflate(needed.min(self.held), memory);
        }
        if self.held > self.target {
            return self.deflate(self.held - self.target, memory);
        }
        // 5.5.6.1: a balloon that is not too large must not shrink, so frames that must leave are
        // deflated only after others were inflated.
        let in_the_way = in_the_way.min(self.held).min(PIECE_FRAMES);
        let goal = self.target + in_the_way;
        if self.held == goal {
            return self.settle();
        }
        if let Some(until) = self.backoff.waiting(now) {
            return Turn::Wait(Some(until));
        }
        if self.blocked {
            return Turn::Wait(None);
        }
        self.inflate(now, goal - self.held, memory)
    }

    fn inflate<M: Memory>(&mut self, now: Duration, frames: u64, memory: &mut M) -> Turn {
        let most = frames.min(PIECE_FRAMES);
        let why = match memory.inflate(most) {
            Ok(all) if all.is_empty() || all.frames() > most => {
                memory.inflate_refused(all);
                return Turn::Fail(Failure::Memory(all));
            }
            Ok(all) if all.end().number() > Message::FRAME_LIMIT => {
                memory.inflate_refused(all);
                Obstacle::Never("only memory above 16 TiB is left")
            }
            Ok(all) => {
                if !matches!(self.status, Status::Pending(Pending::Needed)) {
                    self.status = Status::Resizing;
                }
                self.passage = Some(Passage { outwards: true, all, rest: all });
                return Turn::Again;
            }
            Err(obstacle) => obstacle,
        };
        match why {
            Obstacle::Working => return Turn::Wait(Some(now)),
            Obstacle::Later(why) => {
                self.backoff.failed(now);
                self.status = Status::Pending(Pending::Memory(why));
            }
            Obstacle::Never(why) => {
                self.blocked = true;
                self.status = Status::Pending(Pending::Memory(why));
            }
        }
        Turn::Wait(self.backoff.waiting(now))
    }

    fn deflate<M: Memory>(&mut self, frames: u64, memory: &mut M) -> Turn {
        let most = frames.min(PIECE_FRAMES);
        match memory.deflate(most) {
            Some(all)
                if all.is_empty()
                    || all.frames() > most
                    || all.end().number() > Message::FRAME_LIMIT =>
            {
                Turn::Fail(Failure::Memory(all))
            }
            Some(all) => {
                if self.held > self.target && self.status == Status::Settled {
                    self.status = Status::Resizing;
                }
                self.passage = Some(Passage { outwards: false, all, rest: all });
                Turn::Again
            }
            None => {
                self.status =
                    Status::Pending(Pending::Memory("the kernel knows no frames of the balloon"));
                Turn::Wait(None)
            }
        }
    }

    fn settle(&mut self) -> Turn {
        self.status = Status::Settled;
        self.target_changes = 0;
        self.backoff.reset();
        Turn::Wait(None)
    }

    fn write_actual(&mut self) -> Turn {
        self.answers_since_actual = 0;
        // It is larger only while frames are being exchanged.
        Turn::Actual(u32::try_from(self.held).unwrap_or(u32::MAX))
    }
}
