//! Inflates or deflates the balloon towards its target: the size that the host wants. Each request
//! to the device names up to 256 frames.

use super::features::Features;
use super::frame_list::FrameList;
use super::in_flight::{DeviceLimits, InFlight};
use super::memory::{DeflateRequest, Memory, Obstacle, Reason};
use super::message::{Answer, Message};
use super::queues::Queue;
use super::status::{Counters, Failure, Pending, Status};
use super::step::{Action, Step, wait_until};
use crate::backoff::Backoff;
use core::time::Duration;
use hotmem::PfnRange;

/// The balloon, and the memory that is being inflated or deflated.
#[derive(Debug)]
pub(super) struct Inflation {
    inflated_frames: u64,
    target_frames: u64,
    transfer: Transfer,
    /// The request that is with the device: the number of its frames.
    in_flight: Option<InFlight<u64>>,
    may_deflate_on_oom: bool,
    /// The number of answers since `actual` was last written.
    answers_since_actual: u32,
    backoff: Backoff,
    /// Whether the memory manager has refused permanently. The balloon is then not inflated until
    /// the host requests another size.
    is_blocked: bool,
    /// The number of changes of the target since the balloon last had its target size.
    target_changes: u8,
    status: Status,
}

/// Frames that are inflated or deflated by one or two requests.
#[derive(Debug)]
struct Transfer {
    /// Whether the frames are inflated. Otherwise they are deflated.
    is_inflation: bool,
    /// The frames. If there are none, no transfer is under way.
    frames: FrameList,
    /// How many of the frames were sent.
    sent: usize,
}

impl Transfer {
    fn is_complete(&self) -> bool {
        self.sent == self.frames.len()
    }

    /// Records which frames of the request that was sent last the device says it has initialised.
    fn note_initialised(&mut self, answer: &Answer, frames: u64, counters: &mut Counters) {
        let frames = usize::try_from(frames).unwrap_or(usize::MAX);
        let Some(bits) = answer.bitmap.checked(answer.written, frames) else {
            counters.invalid_answers = counters.invalid_answers.wrapping_add(1);
            return;
        };
        let initialised: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
        counters.initialised_frames = counters.initialised_frames.wrapping_add(initialised.into());
        self.frames.set_initialised(self.sent.saturating_sub(frames), &bits);
    }
}

/// The number of changes of the target on which the driver acts without delay. It delays its answer
/// to later ones, so that a target that changes all the time does not keep the guest busy.
const MAX_TARGET_CHANGES: u8 = 8;
/// After more answers than this, the driver writes `actual`, so that the host sees progress. Each
/// answer is for one request, of at most 1 MiB.
const MAX_ANSWERS_WITHOUT_ACTUAL: u32 = 32;

impl Inflation {
    /// Makes an empty balloon. `answers_since_actual` starts at 1, so that `actual` is written
    /// before the driver first waits: a device that was used before may still have another value
    /// there.
    pub(super) fn new(features: Features, target: u32) -> Inflation {
        Inflation {
            inflated_frames: 0,
            target_frames: target.into(),
            transfer: Transfer { is_inflation: true, frames: FrameList::new(), sent: 0 },
            in_flight: None,
            may_deflate_on_oom: features.contains(Features::DEFLATE_ON_OOM),
            answers_since_actual: 1,
            backoff: Backoff::default(),
            is_blocked: false,
            target_changes: 0,
            status: if target == 0 { Status::Settled } else { Status::Resizing },
        }
    }

    pub(super) fn inflated_frames(&self) -> u64 {
        self.inflated_frames
    }

    pub(super) fn target(&self) -> u64 {
        self.target_frames
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn is_overdue(&self) -> bool {
        self.in_flight.is_some_and(|sent| sent.is_overdue())
    }

    /// Reads the host's target.
    pub(super) fn observe(&mut self, now: Duration, target: u32) {
        if self.target_frames == u64::from(target) {
            return;
        }
        self.target_frames = target.into();
        self.is_blocked = false;
        if self.target_changes < MAX_TARGET_CHANGES {
            self.target_changes += 1;
            self.backoff.reset();
            self.status = Status::Resizing;
        } else if self.backoff.wait_end(now).is_none() {
            self.backoff.start_wait(now);
            self.status = Status::Pending(Pending::TargetUnsteady);
        }
    }

    /// Handles an answer on the inflate queue. Returns whether a request was outstanding there.
    pub(super) fn handle_inflate_answer<M: Memory>(
        &mut self,
        answer: &Answer,
        memory: &mut M,
        counters: &mut Counters,
    ) -> bool {
        let Some(frames) = self.take_answered(true) else { return false };
        self.inflated_frames += frames;
        counters.inflated_frames = counters.inflated_frames.wrapping_add(frames);
        self.transfer.note_initialised(answer, frames, counters);
        if self.transfer.is_complete() {
            memory.inflated(&self.transfer.frames);
            self.transfer.frames.restart(0);
        }
        true
    }

    /// Handles an answer on the deflate queue. Returns whether a request was outstanding there.
    pub(super) fn handle_deflate_answer<M: Memory>(
        &mut self,
        memory: &mut M,
        counters: &mut Counters,
    ) -> bool {
        let Some(frames) = self.take_answered(false) else { return false };
        self.inflated_frames -= frames;
        counters.deflated_frames = counters.deflated_frames.wrapping_add(frames);
        if self.transfer.is_complete() {
            memory.deflated(&self.transfer.frames);
            self.transfer.frames.restart(0);
        }
        true
    }

    /// Ends the outstanding request, if it is of this kind. Returns the number of its frames.
    fn take_answered(&mut self, is_inflation: bool) -> Option<u64> {
        if self.transfer.is_inflation != is_inflation {
            return None;
        }
        let InFlight { request: frames, .. } = self.in_flight.take()?;
        self.answers_since_actual += 1;
        Some(frames)
    }

    pub(super) fn next<M: Memory>(
        &mut self,
        now: Duration,
        limits: DeviceLimits,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Step {
        if let Some(sent) = &mut self.in_flight {
            let queue = if self.transfer.is_inflation { Queue::Inflate } else { Queue::Deflate };
            return sent.wait_for_answer(queue, now, limits, counters);
        }
        if self.answers_since_actual > MAX_ANSWERS_WITHOUT_ACTUAL {
            return self.write_actual();
        }
        if self.transfer.frames.is_empty() {
            match self.next_transfer(now, memory) {
                Step::Working => {}
                // The driver has nothing else to do, so write `actual`.
                Step::Idle | Step::Pending(_) if self.answers_since_actual > 0 => {
                    return self.write_actual();
                }
                step => return step,
            }
        }
        self.send_next(now)
    }

    /// Returns the request for the next frames of the transfer.
    fn send_next(&mut self, now: Duration) -> Step {
        let transfer = &mut self.transfer;
        let part = transfer.frames.part_from(transfer.sent);
        transfer.sent += part.as_slice().len();
        self.in_flight = Some(InFlight::new(part.frames(), now));
        let message = if transfer.is_inflation { Message::Inflate } else { Message::Deflate };
        Step::Ready(Ok(Action::Send(message(part))))
    }

    /// Chooses the next frames to inflate or deflate, if any.
    fn next_transfer<M: Memory>(&mut self, now: Duration, memory: &mut M) -> Step {
        let DeflateRequest { needed_frames: needed, frames_to_replace } = memory.deflate_request();
        if needed > 0 && self.may_deflate_on_oom && self.inflated_frames > 0 {
            // Start a wait, because memory that was taken back must not be inflated again at once.
            self.backoff.start_wait(now);
            self.status = Status::Pending(Pending::GuestNeedsMemory);
            return self.deflate(needed.min(self.inflated_frames), memory);
        }
        if self.inflated_frames > self.target_frames {
            return self.deflate(self.inflated_frames - self.target_frames, memory);
        }
        // A balloon that is not larger than its target must not shrink (5.5.6.1). So if the kernel
        // wants frames back, because their memory will be removed, first inflate other frames
        // beyond the target, and then deflate the frames to be replaced.
        let frames_to_replace =
            frames_to_replace.min(self.inflated_frames).min(FrameList::MAX_LEN as u64);
        let goal_frames = self.target_frames + frames_to_replace;
        if self.inflated_frames == goal_frames {
            return self.target_reached();
        }
        if let Some(until) = self.backoff.wait_end(now) {
            return Step::Pending(until);
        }
        if self.is_blocked {
            return Step::Idle;
        }
        self.inflate(now, goal_frames - self.inflated_frames, memory)
    }

    fn inflate<M: Memory>(&mut self, now: Duration, frames: u64, memory: &mut M) -> Step {
        let list = self.begin_transfer(true, frames);
        let result = memory.inflate(list);
        let obstacle = match result {
            _ if !list.is_empty() => {
                if !matches!(self.status, Status::Pending(Pending::GuestNeedsMemory)) {
                    self.status = Status::Resizing;
                }
                return Step::Working;
            }
            Ok(()) => return Step::Ready(Err(Failure::WrongRange(PfnRange::EMPTY))),
            Err(obstacle) => obstacle,
        };
        match obstacle {
            Obstacle::Working => return Step::Pending(now),
            Obstacle::Later(reason) => {
                self.backoff.start_wait(now);
                self.status = Status::Pending(Pending::Memory(reason));
            }
            Obstacle::Never(reason) => {
                self.is_blocked = true;
                self.status = Status::Pending(Pending::Memory(reason));
            }
        }
        wait_until(self.backoff.wait_end(now))
    }

    fn deflate<M: Memory>(&mut self, frames: u64, memory: &mut M) -> Step {
        let list = self.begin_transfer(false, frames);
        memory.deflate(list);
        if list.is_empty() {
            let reason = Reason::Other("the kernel returned no frames to deflate");
            self.status = Status::Pending(Pending::Memory(reason));
            return Step::Idle;
        }
        if self.inflated_frames > self.target_frames && self.status == Status::Settled {
            self.status = Status::Resizing;
        }
        Step::Working
    }

    /// Returns the list of the next transfer, with room for `frames` frames.
    fn begin_transfer(&mut self, is_inflation: bool, frames: u64) -> &mut FrameList {
        (self.transfer.is_inflation, self.transfer.sent) = (is_inflation, 0);
        self.transfer.frames.restart(frames);
        &mut self.transfer.frames
    }

    fn target_reached(&mut self) -> Step {
        self.status = Status::Settled;
        self.target_changes = 0;
        self.backoff.reset();
        Step::Idle
    }

    fn write_actual(&mut self) -> Step {
        self.answers_since_actual = 0;
        // Both the target and a balloon that has reached it fit in 32 bits. Only the replacement of
        // frames inflates beyond the target, so only then can the number exceed 32 bits.
        let frames = u32::try_from(self.inflated_frames).unwrap_or(u32::MAX);
        Step::Ready(Ok(Action::SetActual(frames)))
    }
}
