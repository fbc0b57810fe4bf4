//! A virtio-balloon device that does what the specification says, checks that the driver does too,
//! and is late when told to.

use hotmem::PfnRange;
use hotmem_virtio::balloon::{Message, Queue, RawConfig};
use std::collections::{BTreeSet, VecDeque};

#[derive(Default)]
pub(crate) struct Device {
    pub(crate) config: RawConfig,
    pub(crate) actual: u32,
    /// Frames that the host has by inflation, by number.
    pub(crate) balloon: BTreeSet<u32>,
    /// What is on the queues, in the order in which it came.
    pub(crate) waiting: VecDeque<Message>,
    /// Answers nothing on these.
    pub(crate) asleep: Vec<Queue>,
    pub(crate) sent: Vec<Message>,
    /// Statistics that are kept until somebody wants news.
    pub(crate) kept: Option<Message>,
    /// Shows no command any more once the driver has begun it, and says nothing of that: QEMU.
    pub(crate) hides_commands: bool,
    /// The command whose hints are coming.
    pub(crate) hinting: Option<u32>,
    pub(crate) hinted: Vec<PfnRange>,
    pub(crate) reported: Vec<PfnRange>,
}

impl Device {
    pub(crate) fn new(num_pages: u32) -> Device {
        let config = RawConfig { num_pages, ..RawConfig::default() };
        Device { config, actual: 99, ..Device::default() }
    }

    /// Tells the driver of this command.
    pub(crate) fn ask_hints(&mut self, command: u32) {
        self.config.free_page_hint_cmd_id = command;
        self.config.generation = self.config.generation.wrapping_add(1);
    }

    pub(crate) fn send(&mut self, message: Message) {
        let queue = message.queue();
        let busy = self.waiting.iter().any(|other| other.queue() == queue)
            || (queue == Queue::Statistics && self.kept.is_some());
        assert!(!busy, "a second request on {queue:?}");
        self.sent.push(message);
        self.waiting.push_back(message);
    }

    /// Forgets what it was given.
    pub(crate) fn reset(&mut self) {
        self.waiting.clear();
        self.balloon.clear();
        (self.kept, self.hinting) = (None, None);
    }

    /// Does the next request and says on which queue.
    pub(crate) fn answer(&mut self) -> Option<Queue> {
        let next = self.waiting.iter().position(|m| !self.asleep.contains(&m.queue()))?;
        let message = self.waiting.remove(next)?;
        self.perform(&message);
        if message.queue() == Queue::Statistics {
            self.kept = Some(message);
            return self.answer();
        }
        Some(message.queue())
    }

    /// Somebody wants news.
    pub(crate) fn ask_statistics(&mut self) -> Option<Queue> {
        self.kept.take().map(|_| Queue::Statistics)
    }

    fn perform(&mut self, message: &Message) {
        match message {
            Message::Inflate(range) => {
                assert!((1..=256).contains(&range.frames()));
                for number in Message::frame_numbers(*range) {
                    assert!(self.balloon.insert(number), "frame {number} twice in the balloon");
                }
            }
            Message::Deflate(range) => {
                assert!((1..=256).contains(&range.frames()));
                for number in Message::frame_numbers(*range) {
                    assert!(self.balloon.remove(&number), "frame {number} is not in the balloon");
                }
            }
            Message::Statistics(statistics) => assert!(statistics.to_bytes().1 > 0),
            Message::HintCommand(0) => {
                assert!(self.hinting.take().is_some(), "an end without a beginning");
            }
            Message::HintCommand(command) => {
                assert_eq!(self.hinting, None, "two commands at a time");
                self.hinting = Some(*command);
                if self.hides_commands && self.config.free_page_hint_cmd_id == *command {
                    self.config.free_page_hint_cmd_id = 0;
                }
            }
            Message::Hint(range) => {
                assert!(self.hinting.is_some(), "a hint for nobody");
                self.hinted.push(*range);
            }
            Message::Report(ranges) => {
                assert!(!ranges.as_slice().is_empty());
                self.reported.extend(ranges.as_slice());
            }
        }
    }
}
