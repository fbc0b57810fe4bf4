//! Free page hints (5.5.6.5): what a migration need not carry.
//!
//! No interrupt tells that a hint was used: while a migration wants hints, QEMU would interrupt all
//! the time, whether it has used one or not. The driver looks for itself, as Linux does.

use super::config::RawConfig;
use super::memory::Memory;
use super::message::Message;
use super::queues::Queue;
use super::status::Counters;
use super::turn::{Sent, Terms, Turn};
use core::time::Duration;

/// What the device wants, and how far its wish has been met.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// `free_page_hint_cmd_id`, as last told.
    command: u32,
    /// The configuration's generation, as last read.
    generation: u32,
    /// The command whose beginning was sent and whose end was not.
    open: Option<u32>,
    /// The command that was met in full.
    met: Option<u32>,
    /// Whether anything may be held that was hinted.
    holding: bool,
    /// Frames of the hint that is with the device, 0 for a command.
    sent: Option<Sent<u64>>,
}

/// `VIRTIO_BALLOON_CMD_ID_STOP`: no more hints, but hold what was hinted.
const STOP: u32 = 0;
/// `VIRTIO_BALLOON_CMD_ID_DONE`: no more hints, and release what was hinted.
const DONE: u32 = 1;

impl Hints {
    pub(super) fn is_overdue(&self) -> bool {
        self.sent.is_some_and(|sent| sent.is_overdue())
    }

    pub(super) fn observe(&mut self, config: &RawConfig) {
        let told = core::mem::replace(&mut self.generation, config.generation) != config.generation;
        let command = config.free_page_hint_cmd_id;
        // QEMU's field reads as STOP from the moment at which it has the driver's answer to its
        // command (`virtio_balloon_get_config`). Where it means that, it tells the driver.
        if command == STOP && !told {
            return;
        }
        if self.command != command {
            self.command = command;
            self.met = None;
        }
    }

    /// Returns the device answered. Returns whether that was due.
    pub(super) fn used<M: Memory>(&mut self, memory: &mut M, counters: &mut Counters) -> bool {
        let Some(Sent { what: frames, .. }) = self.sent.take() else { return false };
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
            return sent.looked_for(Queue::Hints, now, terms, counters);
        }
        // A command ID may come again only after the end of its hints.
        if self.open.is_some_and(|open| open != self.command) {
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
            command if self.met == Some(command) => Turn::Wait(None),
            command if self.open.is_none() => self.send_command(now, command),
            command => match memory.next_hint().filter(|range| !range.is_empty()) {
                Some(range) => {
                    self.holding = true;
                    self.sent = Some(Sent::new(range.frames(), now));
                    Turn::Send(Message::Hint(range))
                }
                None => {
                    self.met = Some(command);
                    self.send_command(now, STOP)
                }
            },
        }
    }

    fn send_command(&mut self, now: Duration, command: u32) -> Turn {
        self.open = (command != STOP).then_some(command);
        self.sent = Some(Sent::new(0, now));
        Turn::Send(Message::HintCommand(command))
    }
}
