//! The driver on a [`Transport`] of the virtio-drivers crate (PCI, MMIO).

use super::config::RawConfig;
use super::driver::{Driver, Step};
use super::memory::Memory;
use super::message::{Message, Ranges};
use super::queues::{Queue, Queues};
use super::start::{InitError, SHORT_SIZE, Wanted, in_use, negotiate, read_config};
use super::statistics::MemoryStatistics;
use super::status::Failure;
use crate::dma::DmaMemory;
use crate::handshake::reset;
use crate::queue::{Buffer, QueueError, SplitQueue, Used};
use core::time::Duration;
use hotmem::PfnRange;
use virtio_drivers::Error as TransportError;
use virtio_drivers::transport::{DeviceStatus, Transport};

/// A virtio-balloon device and its driver.
///
/// To be polled: when it interrupts, when memory was freed that may be reported, and when the time
/// comes that the last poll returned.
#[derive(Debug)]
pub struct Device<T: Transport> {
    // First, so that the transport resets the device before the memory of its queues is given up.
    transport: T,
    numbers: Queues,
    /// Inflate, deflate, statistics, hints: one piece at a time.
    short: [ShortQueue; 4],
    reports: ReportQueue,
    messages: DmaMemory,
    wanted: Wanted,
    config: RawConfig,
    driver: Driver,
    queue_error: Option<QueueError>,
    transport_error: Option<TransportError>,
    /// What was answered when the device was reset last, and how often in a row it was reset
    /// without having answered anything.
    silence: (Answers, u32),
}

/// What to do after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The budget is used up: poll again, when it suits.
    Again,
    /// Nothing to do until this time, or until the device interrupts or memory is freed.
    WaitUntil(Duration),
    /// Nothing to do until the device interrupts or memory is freed.
    Idle,
    /// The device is left alone from now on. What it had stays out of use until it is reset.
    Failed(Failure),
}

/// Requests of each kind that were answered.
type Answers = (u64, u64, u64, u64);
/// This many resets in a row a device may need without an answer in between.
const MOST_RESETS: u32 = 3;

/// One chain of one piece is all that is ever outstanding on a queue.
type ShortQueue = SplitQueue<{ SHORT_SIZE as usize }>;
/// Except here, where a chain has a piece for each range. The device may allow fewer descriptors.
type ReportQueue = SplitQueue<{ Ranges::MOST }>;
/// Offsets in `messages`. The balloon inflates or deflates, never both.
const FRAME_NUMBERS: usize = 0;
const STATISTICS: usize = FRAME_NUMBERS + Message::MOST_BYTES;
const COMMAND: usize = STATISTICS + MemoryStatistics::SIZE;
const MESSAGES: usize = (COMMAND + 4).next_multiple_of(16);

impl<T: Transport> Device<T> {
    /// Shared memory that the device needs, in bytes.
    pub const MEMORY_SIZE: usize = 4 * ShortQueue::BYTES + ReportQueue::BYTES + MESSAGES;

    /// Starts the device: resets it, negotiates its features, sets up its queues. The balloon is
    /// empty then. What an earlier driver left with the device is free to be
    /// [taken back](Memory::device_reset).
    ///
    /// # Errors
    /// Why there is no driver for this device. It is told so, and the transport is dropped.
    pub fn new(
        mut transport: T,
        memory: DmaMemory,
        wanted: Wanted,
    ) -> Result<Device<T>, InitError> {
        let (queues, messages) = lay_out(memory).ok_or(InitError::Memory)?;
        let (short, reports) = queues;
        let started = negotiate(&mut transport, wanted)
            .inspect_err(|_| transport.set_status(DeviceStatus::FAILED))?;
        let (numbers, config, driver) = started;
        let silence = (answers(&driver), 0);
        let (queue_error, transport_error) = (None, None);
        let mut device = Device {
            transport,
            numbers,
            short,
            reports,
            messages,
            wanted,
            config,
            driver,
            queue_error,
            transport_error,
            silence,
        };
        device.set_up_queues();
        Ok(device)
    }

    /// Tells the device, which was reset and has agreed on features, where its queues are.
    fn set_up_queues(&mut self) {
        let transport = &mut self.transport;
        for (queue, place) in Queue::ALL.into_iter().zip(&mut self.short) {
            if let Some(number) = in_use(&self.numbers, &self.driver, queue) {
                place.reset(SHORT_SIZE as usize);
                let (at, driver_area) = (place.descriptors(), place.driver_area());
                transport.queue_set(number, SHORT_SIZE, at, driver_area, place.device_area());
            }
        }
        if let Some(number) = in_use(&self.numbers, &self.driver, Queue::Reports) {
            let place = &mut self.reports;
            place.reset(usize::try_from(transport.max_queue_size(number)).unwrap_or(usize::MAX));
            let (at, driver_area) = (place.descriptors(), place.driver_area());
            let size = place.size().into();
            transport.queue_set(number, size, at, driver_area, place.device_area());
        }
        transport.finish_init();
    }

    /// The device has been silent on `queue` for too long: takes back all that it has, and starts
    /// it again, unless it has been silent too often.
    fn restart<M: Memory>(&mut self, queue: Queue, memory: &mut M) {
        if !reset(&mut self.transport) {
            return self.driver.fail(Failure::Stuck(queue));
        }
        memory.device_reset();
        let (before, resets) = self.silence;
        let answered = answers(&self.driver);
        let resets = if answered == before { resets + 1 } else { 1 };
        self.silence = (answered, resets);
        if resets >= MOST_RESETS {
            return self.driver.fail(Failure::Silent(queue));
        }
        match negotiate(&mut self.transport, self.wanted) {
            // What memory may hold depends on what was negotiated.
            Ok((numbers, config, driver)) if driver.features() == self.driver.features() => {
                (self.numbers, self.config) = (numbers, config);
                self.driver = driver.after(&self.driver);
                self.set_up_queues();
            }
            _ => {
                self.transport.set_status(DeviceStatus::FAILED);
                self.driver.fail(Failure::Restart(queue));
            }
        }
    }

    /// Does what there is to do: takes the device's answers, reads its configuration, sends the
    /// next requests, in at most `budget` steps of the driver.
    ///
    /// A step costs a call or two of [`Memory`]'s and a look at each queue; the configuration is
    /// read once a poll.
    pub fn poll<M: Memory>(&mut self, now: Duration, budget: u32, memory: &mut M) -> Progress {
        match read_config(&self.transport, self.driver.features()) {
            Ok(config) => self.config = config,
            Err(error) => self.fail_transport(error),
        }
        for _ in 0..budget {
            let used = self.take_used();
            match self.driver.step(now, &self.config, used, memory) {
                Step::Send(message) => self.send(&message),
                Step::SetActual(frames) => {
                    let written = self.transport.write_config_space(RawConfig::ACTUAL, frames);
                    if let Err(error) = written {
                        self.fail_transport(error);
                    }
                }
                Step::Again => {}
                Step::Silent(queue) => self.restart(queue, memory),
                Step::Failed(failure) => return Progress::Failed(failure),
                // There may be another.
                _ if used.is_some() => {}
                Step::WaitUntil(until) => {
                    self.remind_of_hint();
                    return Progress::WaitUntil(until);
                }
                Step::Idle => return Progress::Idle,
            }
        }
        Progress::Again
    }

    /// Tells the device that it need not interrupt when it has used what is on this queue: for a
    /// kernel that polls. For [`Queue::Hints`] it knows already.
    pub fn suppress_interrupts(&mut self, queue: Queue) {
        match self.short.get_mut(queue as usize) {
            Some(short) => short.suppress_interrupts(),
            None => self.reports.suppress_interrupts(),
        }
    }

    /// Acknowledges the device's interrupt, so that the line is released, and returns whether
    /// this device had raised it. If so, poll it.
    pub fn ack_interrupt(&mut self) -> bool {
        !self.transport.ack_interrupt().is_empty()
    }

    /// Resets the device and takes back all that it had.
    pub fn stop<M: Memory>(self, memory: &mut M) {
        drop(self);
        memory.device_reset();
    }

    /// Returns the state machine, for what it knows and counts.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns which queue has which number.
    #[must_use]
    pub fn queues(&self) -> Queues {
        self.numbers
    }

    /// Returns what the device did to a queue that it must not, if that is why it failed.
    #[must_use]
    pub fn queue_error(&self) -> Option<QueueError> {
        self.queue_error
    }

    /// Returns why its configuration space could not be accessed, if that is why it failed.
    #[must_use]
    pub fn transport_error(&self) -> Option<TransportError> {
        self.transport_error
    }

    fn fail_transport(&mut self, error: TransportError) {
        self.transport_error.get_or_insert(error);
        self.driver.fail(Failure::ConfigSpace);
    }

    /// Notifies the device of its hint again. QEMU's thread for hints may miss one that comes just
    /// after it has found none: it asks to be notified and does not look again.
    fn remind_of_hint(&mut self) {
        let [.., hints] = &self.short;
        if hints.outstanding() > 0
            && hints.wants_notification()
            && let Some(number) = self.numbers.number(Queue::Hints)
        {
            self.transport.notify(number);
        }
    }

    /// Returns a queue on which the device has used what it was given.
    fn take_used(&mut self) -> Option<Queue> {
        for queue in Queue::ALL {
            let popped = match self.short.get_mut(queue as usize) {
                Some(short) => short.pop(),
                None => self.reports.pop(),
            };
            match popped {
                Ok(Some(Used { .. })) => return Some(queue),
                Ok(None) => {}
                Err(error) => {
                    self.queue_error.get_or_insert(error);
                    self.driver.fail(Failure::Queue(queue));
                }
            }
        }
        None
    }

    fn send(&mut self, message: &Message) {
        let bytes = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let to_read = |messages: &DmaMemory, offset: usize, len| Buffer {
            device_addr: messages.device_addr() + offset as u64,
            len,
            device_writes: false,
        };
        let mut buffers = [EMPTY; Ranges::MOST];
        let mut pieces = 1;
        match message {
            Message::Inflate(range) | Message::Deflate(range) => {
                let mut len = 0;
                for number in Message::frame_numbers(*range).take(Message::MOST_BYTES / 4) {
                    self.messages.write(FRAME_NUMBERS + len, number.to_le_bytes());
                    len += 4;
                }
                buffers[0] = to_read(&self.messages, FRAME_NUMBERS, bytes(len));
            }
            Message::Statistics(statistics) => {
                let (entries, len) = statistics.to_bytes();
                self.messages.write(STATISTICS, entries);
                buffers[0] = to_read(&self.messages, STATISTICS, bytes(len));
            }
            Message::HintCommand(command) => {
                self.messages.write(COMMAND, command.to_le_bytes());
                buffers[0] = to_read(&self.messages, COMMAND, 4);
            }
            Message::Hint(range) => buffers[0] = frames(*range),
            Message::Report(ranges) => {
                pieces = ranges.as_slice().len();
                let places = buffers.iter_mut().zip(ranges.as_slice());
                places.for_each(|(buffer, &range)| *buffer = frames(range));
            }
        }
        let chain = buffers.get(..pieces).unwrap_or(&buffers);
        let queue = message.queue();
        #[allow(unsafe_code)]
        let (pushed, wants) = match self.short.get_mut(queue as usize) {
            Some(short) => {
                // SAFETY: what the device reads lies in `messages`, at a place that is written
                // here only, and not while a request is outstanding on the queue. What it writes
                // are frames that the memory manager has taken out of use until the device has
                // used them.
                (unsafe { short.push(chain) }, short.wants_notification())
            }
            None => {
                // SAFETY: as above.
                (unsafe { self.reports.push(chain) }, self.reports.wants_notification())
            }
        };
        match (pushed, self.numbers.number(queue)) {
            (Ok(_), Some(number)) if wants => self.transport.notify(number),
            (Ok(_), _) => {}
            (Err(error), _) => {
                self.queue_error = Some(error);
                self.driver.fail(Failure::Queue(queue));
            }
        }
    }
}

const EMPTY: Buffer = Buffer { device_addr: 0, len: 0, device_writes: true };

/// Frames as a buffer for the device to write.
fn frames(range: PfnRange) -> Buffer {
    // What does not fit is refused by the queue; no report or hint is as large.
    let len = u32::try_from(range.bytes().0).unwrap_or(0);
    Buffer { device_addr: range.start().phys_addr(), len, device_writes: true }
}

type AllQueues = ([ShortQueue; 4], ReportQueue);

/// Returns the queues and the rest of the memory.
fn lay_out(memory: DmaMemory) -> Option<(AllQueues, DmaMemory)> {
    let (reports, memory) = ReportQueue::new(memory)?;
    let (inflate, memory) = ShortQueue::new(memory)?;
    let (deflate, memory) = ShortQueue::new(memory)?;
    let (statistics, memory) = ShortQueue::new(memory)?;
    let (mut hints, memory) = ShortQueue::new(memory)?;
    hints.suppress_interrupts();
    let queues = ([inflate, deflate, statistics, hints], reports);
    (memory.len() >= MESSAGES).then_some((queues, memory))
}

/// Returns what the device has answered so far.
fn answers(driver: &Driver) -> Answers {
    let counters = driver.counters();
    (counters.inflated, counters.deflated, counters.reports, counters.hints)
}
