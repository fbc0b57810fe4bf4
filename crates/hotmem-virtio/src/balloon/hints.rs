//! Sends free page hints (5.5.6.5), which name memory that a migration need not copy.
//!
//! The queue's interrupts are suppressed, because QEMU would interrupt all the time during a
//! migration, even if it has used no hint. The driver polls the queue instead, as Linux does.

use super::config::RawConfig;
use super::memory::Memory;
use super::message::Message;
use super::queues::Queue;
use super::status::Counters;
use super::turn::{Sent, Terms, Turn};
use core::time::Duration;

/// The state of hints: the device's command, and how far the driver has carried it out.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// The last `free_page_hint_cmd_id`.
    command: u32,
    /// The last generation of the configuration.
    generation: u32,
    /// The command whose start was sent, but whose end was not sent yet.
    started: Option<u32>,
    /// The last command that was carried out completely.
    completed: Option<u32>,
    /// Whether hinted memory may be held out of use.
    holding: bool,
    /// The number of frames in the hint that is with the device, or 0 if a command is with the
    /// device.
    sent: Option<Sent<u64>>,
}

/// `VIRTIO_BALLOON_CMD_ID_STOP`: no more hints, but hinted memory stays out of use.
const STOP: u32 = 0;
/// `VIRTIO_BALLOON_CMD_ID_DONE`: no more hints, and hinted memory may be used again.
const DONE: u32 = 1;

impl Hints {
    pub(super) fn is_overdue(&self) -> bool {
        self.sent.is_some_and(|sent| sent.is_overdue())
    }

    pub(super) fn observe(&mut self, config: &RawConfig) {
        let has_changed =
            core::mem::replace(&mut self.generation, config.generation) != config.generation;
        let command = config.free_page_hint_cmd_id;
        // Ignore a STOP without a new generation. QEMU's field reads as STOP as soon as QEMU has
        // the driver's answer to its command (`virtio_balloon_get_config`), but a real STOP also
        // changes the generation.
        if command == STOP && !has_changed {
            return;
        }
        if self.command != command {
            self.command = command;
            self.completed = None;
        }
    }

    /// Handles an answer of the device. Returns whether a request was outstanding.
    pub(super) fn used<M: Memory>(&mut self, memory: &mut M, counters: &mut Counters) -> bool {
        let Some(Sent { request: frames, .. }) = self.sent.take() else { return false };
        if frames > 0 {
            counters.hints = counters.hints.wrapping_add(1);
            counters.hinted = counters.hinted.wrapping_add(frames);
            memory.hinted();
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
            return sent.awaited_by_polling(Queue::Hints, now, terms, counters);
        }
        // Send the end of the previous command's hints first, because a command ID may be reused
        // only after that.
        if self.started.is_some_and(|started| started != self.command) {
            return self.send_command(now, STOP);
        }
        match self.command {
            STOP => Turn::Wait(None),
            DONE => {
                if core::mem::take(&mut self.holding) {
                    memory.release_hints();
                }
                Turn::Wait(None)
            }
            command if self.completed == Some(command) => Turn::Wait(None),
            command if self.started.is_none() => self.send_command(now, command),
            command => match memory.next_hint().filter(|range| !range.is_empty()) {
                Some(range) => {
                    self.holding = true;
                    self.sent = Some(Sent::new(range.frames(), now));
                    Turn::Send(Message::Hint(range))
                }
                None => {
                    self.completed = Some(command);
                    self.send_command(now, STOP)
                }
            },
        }
    }

    fn send_command(&mut self, now: Duration, command: u32) -> Turn {
        self.started = (command != STOP).then_some(command);
        self.sent = Some(Sent::new(0, now));
        Turn::Send(Message::HintCommand(command))
    }
}
