//! Simulates a virtio-balloon device. The device follows the specification, checks that the driver
//! does so too, and delays answers as a test has chosen.

use hotmem::PfnRange;
use hotmem_virtio::balloon::{Message, Queue, RawConfig};
use std::collections::{BTreeSet, VecDeque};

/// The command that ends hints (5.5.6.5). Hinted memory stays out of use.
pub(crate) const STOP: u32 = 0;
/// The command that ends hints and lets the guest use hinted memory again.
pub(crate) const DONE: u32 = 1;

#[derive(Default)]
pub(crate) struct Device {
    pub(crate) config: RawConfig,
    pub(crate) actual_pages: u32,
    /// The numbers of the frames in the balloon.
    pub(crate) balloon: BTreeSet<u32>,
    /// The outstanding requests, in order.
    pub(crate) unanswered: VecDeque<Message>,
    /// The queues on which the device does not answer.
    pub(crate) silent_queues: Vec<Queue>,
    /// All messages that the driver has sent.
    pub(crate) messages: Vec<Message>,
    /// The buffer of statistics, which the device keeps until it requests new statistics.
    pub(crate) statistics_buffer: Option<Message>,
    /// Whether the device hides a command after the driver has begun it, as QEMU does.
    pub(crate) hides_commands: bool,
    /// The command whose hints are being sent.
    pub(crate) hint_command: Option<u32>,
    pub(crate) hinted_ranges: Vec<PfnRange>,
    pub(crate) reported_ranges: Vec<PfnRange>,
}

impl Device {
    pub(crate) fn new(num_pages: u32) -> Device {
        let config = RawConfig { num_pages, ..RawConfig::default() };
        Device { config, actual_pages: 99, ..Device::default() }
    }

    /// Announces this command to the driver.
    pub(crate) fn request_hints(&mut self, command: u32) {
        self.config.free_page_hint_cmd_id = command;
        self.change_generation();
    }

    pub(crate) fn change_generation(&mut self) {
        // In PCI's configuration, the generation has 8 bits.
        self.config.generation = (self.config.generation + 1) % 256;
    }

    pub(crate) fn send(&mut self, message: Message) {
        let queue = message.queue();
        let busy = self.unanswered.iter().any(|request| request.queue() == queue)
            || (queue == Queue::Statistics && self.statistics_buffer.is_some());
        assert!(!busy, "the driver sends a second request on {queue:?}");
        self.messages.push(message);
        self.unanswered.push_back(message);
    }

    /// Removes all buffers.
    pub(crate) fn reset(&mut self) {
        self.unanswered.clear();
        self.balloon.clear();
        (self.statistics_buffer, self.hint_command) = (None, None);
    }

    /// Carries out the next request, and returns its queue.
    pub(crate) fn answer(&mut self) -> Option<Queue> {
        let next = self.unanswered.iter().position(|m| !self.silent_queues.contains(&m.queue()))?;
        let message = self.unanswered.remove(next)?;
        self.carry_out(&message);
        if message.queue() == Queue::Statistics {
            self.statistics_buffer = Some(message);
            return self.answer();
        }
        Some(message.queue())
    }

    /// Requests new statistics.
    pub(crate) fn request_statistics(&mut self) -> Option<Queue> {
        self.statistics_buffer.take().map(|_| Queue::Statistics)
    }

    fn carry_out(&mut self, message: &Message) {
        match message {
            Message::Inflate(frames) => {
                assert!((1..=256).contains(&frames.frames()));
                for &number in frames.as_slice() {
                    assert!(self.balloon.insert(number), "frame {number} is in the balloon twice");
                }
            }
            Message::Deflate(frames) => {
                assert!((1..=256).contains(&frames.frames()));
                for number in frames.as_slice() {
                    assert!(self.balloon.remove(number), "frame {number} is not in the balloon");
                }
            }
            Message::Statistics(statistics) => assert!(statistics.to_bytes().1 > 0),
            Message::HintCommand(0) => {
                assert!(
                    self.hint_command.take().is_some(),
                    "the driver ends hints without a start"
                );
            }
            Message::HintCommand(command) => {
                assert_eq!(
                    self.hint_command, None,
                    "the driver begins a command before the end of another one"
                );
                self.hint_command = Some(*command);
                if self.hides_commands && self.config.free_page_hint_cmd_id == *command {
                    self.config.free_page_hint_cmd_id = 0;
                }
            }
            Message::Hint(range) => {
                assert!(self.hint_command.is_some(), "the driver sends a hint without a command");
                self.hinted_ranges.push(*range);
            }
            Message::Report(ranges) => {
                assert!(!ranges.as_slice().is_empty());
                self.reported_ranges.extend(ranges.as_slice());
            }
        }
    }
}
