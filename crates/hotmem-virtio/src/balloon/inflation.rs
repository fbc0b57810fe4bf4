//! Inflates or deflates the balloon towards the size that the host requests, 256 frames in a
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
    transfer: Option<Transfer>,
    sent: Option<Sent<PfnRange>>,
    may_deflate_on_oom: bool,
    /// The number of answers since `actual` was last written.
    answers_since_actual: u32,
    backoff: Backoff,
    /// Whether the memory manager refused permanently, so that the balloon is not inflated until
    /// the host requests another size.
    blocked: bool,
    /// The number of changes of the target since the balloon last had its size.
    target_changes: u8,
    status: Status,
}

/// A piece of memory that is inflated or deflated by several requests.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    /// Whether the piece is inflated. Otherwise it is deflated.
    is_inflation: bool,
    all: PfnRange,
    /// The part that is not sent yet.
    rest: PfnRange,
}

/// The largest number of frames taken from the memory manager at a time. Most free memory is in
/// pieces of this size.
const PIECE_FRAMES: u64 = PAGEBLOCK_FRAMES as u64;
/// The number of changes of the target that are followed without a delay.
const MAX_TARGET_CHANGES: u8 = 8;
/// The number of answers, one for each MiB, after which `actual` is written, so that the host sees
/// progress.
const ANSWERS_PER_ACTUAL: u32 = 32;

impl Inflation {
    /// Makes an empty balloon. `actual` is written first, because a device that was used before may
    /// still have another value there.
    pub(super) fn new(features: Features, target: u32) -> Inflation {
        Inflation {
            held: 0,
            target: target.into(),
            transfer: None,
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
        } else if self.backoff.wait_end(now).is_none() {
            self.backoff.failed(now);
            self.status = Status::Pending(Pending::TargetUnsteady);
        }
    }

    /// Handles an answer on the inflate queue if `is_inflation`, otherwise on the deflate queue.
    /// Returns whether a request was outstanding there.
    pub(super) fn used<M: Memory>(
        &mut self,
        is_inflation: bool,
        memory: &mut M,
        counters: &mut Counters,
    ) -> bool {
        let Some(transfer) = self.transfer.filter(|p| p.is_inflation == is_inflation) else {
            return false;
        };
        let Some(piece) = self.sent.take() else { return false };
        let frames = piece.request.frames();
        if is_inflation {
            self.held += frames;
            counters.inflated = counters.inflated.wrapping_add(frames);
        } else {
            self.held -= frames;
            counters.deflated = counters.deflated.wrapping_add(frames);
        }
        self.answers_since_actual += 1;
        if transfer.rest.is_empty() {
            self.transfer = None;
            if !is_inflation {
                memory.deflated(transfer.all);
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
            let is_inflation = self.transfer.is_none_or(|transfer| transfer.is_inflation);
            let queue = if is_inflation { Queue::Inflate } else { Queue::Deflate };
            return sent.awaited(queue, now, terms, counters);
        }
        if self.answers_since_actual > ANSWERS_PER_ACTUAL {
            return self.write_actual();
        }
        if self.transfer.is_none() {
            match self.next_piece(now, memory) {
                Turn::Again => {}
                // The driver has nothing else to do, so write `actual`.
                Turn::Wait(_) if self.answers_since_actual > 0 => return self.write_actual(),
                rest => return rest,
            }
        }
        self.send_next(now)
    }

    /// Returns the request for the next part of the piece.
    fn send_next(&mut self, now: Duration) -> Turn {
        let Some(transfer) = &mut self.transfer else { return Turn::Again };
        let end = transfer.rest.start().checked_add(Message::MOST_FRAMES);
        let (piece, rest) = transfer.rest.split_at(end.unwrap_or(transfer.rest.end()));
        transfer.rest = rest;
        self.sent = Some(Sent::new(piece, now));
        Turn::Send(if transfer.is_inflation {
            Message::Inflate(piece)
        } else {
            Message::Deflate(piece)
        })
    }

    /// Chooses the next piece to inflate or deflate, if any.
    fn next_piece<M: Memory>(&mut self, now: Duration, memory: &mut M) -> Turn {
        let WantedBack { needed, in_the_way } = memory.wanted_back();
        if needed > 0 && self.may_deflate_on_oom && self.held > 0 {
            // Start a wait, because memory that was taken back must not be inflated again at once.
            self.backoff.failed(now);
            self.status = Status::Pending(Pending::Needed);
            return self.deflate(needed.min(self.held), memory);
        }
        if self.held > self.target {
            return self.deflate(self.held - self.target, memory);
        }
        // A balloon that is not too large must not shrink (5.5.6.1), so frames that must leave are
        // deflated only after others were inflated.
        let in_the_way = in_the_way.min(self.held).min(PIECE_FRAMES);
        let goal = self.target + in_the_way;
        if self.held == goal {
            return self.settle();
        }
        if let Some(until) = self.backoff.wait_end(now) {
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
                self.transfer = Some(Transfer { is_inflation: true, all, rest: all });
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
        Turn::Wait(self.backoff.wait_end(now))
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
                self.transfer = Some(Transfer { is_inflation: false, all, rest: all });
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
        // The number exceeds 32 bits only while frames are being exchanged.
        Turn::Actual(u32::try_from(self.held).unwrap_or(u32::MAX))
    }
}
