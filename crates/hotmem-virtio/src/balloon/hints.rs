//! Sends free page hints (5.5.6.5), which name memory that a migration need not copy.
//!
//! The queue's interrupts are suppressed, because QEMU would interrupt all the time during a
//! migration, even if it has used no hint. The driver polls the queue instead, as Linux does.

use super::config::RawConfig;
use super::in_flight::{DeviceLimits, InFlight};
use super::memory::Memory;
use super::message::Message;
use super::queues::Queue;
use super::status::Counters;
use super::step::{Action, Step};
use core::time::Duration;

/// The state of hints: the device's command, and how far the driver has carried it out.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// The last `free_page_hint_cmd_id`.
    command: u32,
    /// The last generation of the configuration.
    generation: u32,
    /// Whether the command changed while the generation had not changed yet. Then one change of the
    /// generation is still to come, and belongs to this command.
    is_announcement_due: bool,
    /// The command whose start was sent, but whose end was not sent yet.
    open_command: Option<u32>,
    /// The last command that was carried out completely.
    last_completed: Option<u32>,
    /// Whether a hint was sent since the last call of [`Memory::release_hints`]. If so, the memory
    /// manager may keep hinted memory out of use.
    has_held_hints: bool,
    /// The message that is with the device: the number of frames of the hint, or 0 if it is a command.
    in_flight: Option<InFlight<u64>>,
}

/// `VIRTIO_BALLOON_CMD_ID_STOP`: no more hints, but hinted memory stays out of use.
const STOP: u32 = 0;
/// `VIRTIO_BALLOON_CMD_ID_DONE`: no more hints, and hinted memory may be used again.
const DONE: u32 = 1;

impl Hints {
    pub(super) fn is_overdue(&self) -> bool {
        self.in_flight.is_some_and(|sent| sent.is_overdue())
    }

    pub(super) fn observe(&mut self, config: &RawConfig) {
        let changes = config.generation.wrapping_sub(self.generation);
        self.generation = config.generation;
        let is_due = self.is_announcement_due;
        if changes > 0 {
            self.is_announcement_due = false;
        }
        let command = config.free_page_hint_cmd_id;
        // When the driver has answered a command, QEMU's field reads as STOP, although QEMU has not
        // stopped the hints (`virtio_balloon_get_config`). If QEMU stops the hints, it also changes
        // the generation. So ignore a STOP if the generation has not changed. Ignore it as well
        // if the generation has changed once, and that change is the late one of the last command.
        // PCI's generation has 8 bits, so count modulo 256.
        if command == STOP && (changes == 0 || is_due && changes % 256 == 1) {
            return;
        }
        if self.command != command {
            self.command = command;
            self.last_completed = None;
            self.is_announcement_due = changes == 0;
        }
    }

    /// Handles an answer of the device. Returns whether a request was outstanding.
    pub(super) fn handle_answer<M: Memory>(
        &mut self,
        memory: &mut M,
        counters: &mut Counters,
    ) -> bool {
        let Some(InFlight { request: frames, .. }) = self.in_flight.take() else { return false };
        if frames > 0 {
            counters.hints = counters.hints.wrapping_add(1);
            counters.hinted_frames = counters.hinted_frames.wrapping_add(frames);
            memory.hint_answered();
        }
        true
    }

    pub(super) fn next<M: Memory>(
        &mut self,
        now: Duration,
        limits: DeviceLimits,
        memory: &mut M,
        counters: &mut Counters,
    ) -> Step {
        if let Some(sent) = &mut self.in_flight {
            return sent.poll_for_answer(Queue::Hints, now, limits, counters);
        }
        // Send the end of the previous command's hints first, because a command ID may be reused
        // only after that.
        if self.open_command.is_some_and(|started| started != self.command) {
            return self.send_command(now, STOP);
        }
        match self.command {
            STOP => Step::Idle,
            DONE => {
                if core::mem::take(&mut self.has_held_hints) {
                    memory.release_hints();
                }
                Step::Idle
            }
            command if self.last_completed == Some(command) => Step::Idle,
            command if self.open_command.is_none() => self.send_command(now, command),
            command => match limits.allows_hints.then(|| memory.next_hint()).flatten() {
                Some(range) if !range.is_empty() => {
                    self.has_held_hints = true;
                    self.in_flight = Some(InFlight::new(range.frames(), now));
                    Step::Ready(Ok(Action::Send(Message::Hint(range))))
                }
                _ => {
                    self.last_completed = Some(command);
                    self.send_command(now, STOP)
                }
            },
        }
    }

    fn send_command(&mut self, now: Duration, command: u32) -> Step {
        self.open_command = (command != STOP).then_some(command);
        self.in_flight = Some(InFlight::new(0, now));
        Step::Ready(Ok(Action::Send(Message::HintCommand(command))))
    }
}
