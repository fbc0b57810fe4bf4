//! Runs the driver on a [`Transport`] of the virtio-drivers crate (PCI, MMIO).

use super::config::RawConfig;
use super::driver::Driver;
use super::features::Features;
use super::inflate_bitmap::InflateBitmap;
use super::memory::Memory;
use super::message::{Answer, Message, Ranges};
use super::message_buffers::MessageBuffers;
use super::queues::{Queue, Queues};
use super::set_up::{AllQueues, ReportQueue, ShortQueue, lay_out, start};
use super::start::{BalloonOptions, InitError, Negotiated, read_config};
use super::status::{Failure, ResetCause};
use super::step::{Action, Step};
use crate::barrier::order_reads;
use crate::dma::DmaMemory;
use crate::handshake::{Stop, reset, set_failed, stop_of};
use crate::queue::{QueueError, Used};
use core::time::Duration;
use virtio_drivers::Error as TransportError;
use virtio_drivers::transport::Transport;

/// A virtio-balloon device and its driver.
///
/// Poll the device when it interrupts, when the kernel has freed memory that may be reported, and
/// at the time that the last poll returned.
#[derive(Debug)]
pub struct Device<T: Transport> {
    // The transport is the first field, so that dropping it resets the device before the memory of
    // the queues is freed.
    transport: T,
    numbers: Queues,
    /// The queues for inflate requests, deflate requests, statistics and hints.
    short_queues: [ShortQueue; 4],
    reports: ReportQueue,
    messages: MessageBuffers,
    options: BalloonOptions,
    config: RawConfig,
    driver: Driver,
    queue_error: Option<QueueError>,
    transport_error: Option<TransportError>,
    /// The number of answers before the last reset or the start.
    answers_at_reset: u64,
    /// The number of consecutive resets without an answer in between.
    resets_without_answer: u32,
    /// The cause of the last reset that the kernel has not been told of.
    reset_cause: Option<ResetCause>,
}

/// The progress of a device. It is ready only if the driver has stopped because of a failure. If it is
/// pending, poll the device at the time that it returns. Poll the device earlier, and also if it is
/// idle, when the device interrupts or the kernel frees memory.
pub type Progress = hotmem::Progress<Failure, Duration>;

/// The number of consecutive resets without an answer after which the driver fails.
const MAX_RESETS: u32 = 3;

impl<T: Transport> Device<T> {
    /// The size in bytes of the shared memory that the device needs.
    pub const MEMORY_SIZE: usize =
        4 * ShortQueue::BYTES + ReportQueue::BYTES + MessageBuffers::SIZE;

    /// Starts the device: resets it, negotiates features, and sets up its queues. The first poll
    /// [takes back](Memory::device_reset) memory that an earlier driver gave to the device.
    ///
    /// # Errors
    /// The reason why the device cannot be driven. The device's status is set to FAILED, and the
    /// transport is dropped.
    pub fn new(
        mut transport: T,
        memory: DmaMemory,
        options: BalloonOptions,
    ) -> Result<Device<T>, InitError> {
        let Some((mut queues, messages)) = lay_out(memory) else {
            return Err(InitError::SharedMemory);
        };
        let (short_queues, reports) = &mut queues;
        match start(&mut transport, short_queues, reports, options) {
            Ok(negotiated) => Ok(Self::started(transport, queues, messages, options, negotiated)),
            Err(error) => {
                set_failed(&mut transport);
                Err(error)
            }
        }
    }

    /// Returns a device that was just started. The parts of the device are as large as a quarter of
    /// a small stack, so this function alone puts them together.
    #[inline(never)]
    fn started(
        transport: T,
        (short_queues, reports): AllQueues,
        messages: MessageBuffers,
        options: BalloonOptions,
        Negotiated { features, numbers, config, limits, .. }: Negotiated,
    ) -> Device<T> {
        Device {
            transport,
            numbers,
            short_queues,
            reports,
            messages,
            options,
            config,
            driver: Driver::with_limits(features, &config, limits),
            queue_error: None,
            transport_error: None,
            answers_at_reset: 0,
            resets_without_answer: 0,
            reset_cause: None,
        }
    }

    /// Starts the device again, also after it has failed: resets it, takes back all memory that it
    /// holds, and negotiates the same features. The counters of the driver continue.
    ///
    /// # Errors
    /// The reason why the device cannot be driven. The driver sends no request any more, and each
    /// poll fails, unless a later restart succeeds. The memory is not taken back if the reset does
    /// not complete.
    pub fn restart<M: Memory>(&mut self, memory: &mut M) -> Result<(), Failure> {
        self.resets_without_answer = 0;
        self.reset_and_start(ResetCause::Restart, memory);
        self.reset_cause = None;
        if let Some(failure) = self.driver.failure() {
            return Err(failure);
        }
        (self.queue_error, self.transport_error) = (None, None);
        Ok(())
    }

    /// Resets the device for this cause, takes back all memory that the device holds, and starts the
    /// device again. Fails if the device has been reset too often without an answer.
    #[inline(never)]
    fn reset_and_start<M: Memory>(&mut self, cause: ResetCause, memory: &mut M) {
        if !reset(&mut self.transport) {
            return self.driver.fail(Failure::Stuck(cause));
        }
        memory.device_reset();
        let answers = self.driver.counters().answers();
        let has_answered = answers != self.answers_at_reset;
        self.answers_at_reset = answers;
        self.resets_without_answer = if has_answered { 1 } else { self.resets_without_answer + 1 };
        // The memory manager was set up for the features, so they must not change.
        let features = self.driver.features();
        // Until the device has started again, a driver with an empty balloon and without requests.
        self.driver.restart(&self.config, self.driver.limits());
        self.driver.count_reset();
        if self.resets_without_answer >= MAX_RESETS {
            return self.driver.fail(Failure::Resets(cause));
        }
        let (short_queues, reports) = (&mut self.short_queues, &mut self.reports);
        match start(&mut self.transport, short_queues, reports, self.options) {
            Ok(negotiated) if negotiated.features == features => {
                self.reset_cause = Some(cause);
                (self.numbers, self.config) = (negotiated.numbers, negotiated.config);
                self.driver.restart(&self.config, negotiated.limits);
            }
            _ => {
                set_failed(&mut self.transport);
                self.driver.fail(Failure::NotRestarted(cause));
            }
        }
    }

    /// Takes the device's answers, reads its configuration and sends the next requests, in at most
    /// `budget` steps of the driver.
    ///
    /// A step costs one or two calls of [`Memory`] and a read of each queue. Each poll reads the
    /// status and the configuration once. A device that does not run any more is reset and started
    /// again.
    pub fn poll<M: Memory>(&mut self, now: Duration, budget: u32, memory: &mut M) -> Progress {
        let stop = stop_of(self.transport.get_status());
        if let Some(stop) = stop.filter(|_| self.driver.failure().is_none()) {
            let cause = match stop {
                Stop::NeedsReset => ResetCause::NeedsReset,
                Stop::ResetItself | Stop::Failed => ResetCause::NotRunning,
            };
            self.reset_and_start(cause, memory);
        }
        match read_config(&self.transport, self.driver.features()) {
            Ok(config) => self.config = config,
            Err(error) => self.fail_transport(error),
        }
        for _ in 0..budget {
            let used = self.take_used();
            match self.driver.step(now, &self.config, used, memory) {
                Step::Ready(Ok(Action::Send(message))) => self.send(&message),
                Step::Ready(Ok(Action::SetActual(frames))) => {
                    let written = self.transport.write_config_space(RawConfig::ACTUAL, frames);
                    if let Err(error) = written {
                        self.fail_transport(error);
                    }
                }
                Step::Working => {}
                Step::Ready(Ok(Action::Reset(queue))) => {
                    self.reset_and_start(ResetCause::NoAnswer(queue), memory);
                }
                Step::Ready(Err(failure)) => return Progress::Ready(failure),
                // Step again, because the device may have used another buffer.
                _ if used.is_some() => {}
                Step::Pending(until) => {
                    self.notify_hint_again();
                    return Progress::Pending(until);
                }
                Step::Idle => return Progress::Idle,
            }
        }
        Progress::Working
    }

    /// Asks the device not to interrupt when it has used buffers of this queue, for a kernel that
    /// polls. For [`Queue::Hints`] interrupts are always suppressed.
    pub fn suppress_interrupts(&mut self, queue: Queue) {
        match self.short_queues.get_mut(queue as usize) {
            Some(short) => short.suppress_interrupts(),
            None => self.reports.suppress_interrupts(),
        }
    }

    /// Acknowledges the device's interrupt, so that the device releases the interrupt line. Returns
    /// whether this device had interrupted. If so, poll the device.
    pub fn ack_interrupt(&mut self) -> bool {
        let causes = self.transport.ack_interrupt();
        // Orders the read of the register before the reads of the queues. Otherwise, a read that the
        // processor made early would miss an answer whose interrupt is acknowledged now.
        order_reads();
        !causes.is_empty()
    }

    /// Resets the device and takes back all memory that it holds.
    ///
    /// # Errors
    /// The device itself, if its reset does not complete. The device may still access the memory that
    /// it holds and the memory of its queues, so the memory is not taken back. Try again later, or
    /// never free the memory of the queues.
    #[expect(clippy::result_large_err, reason = "the error is the device, which the caller had")]
    pub fn stop<M: Memory>(mut self, memory: &mut M) -> Result<(), Device<T>> {
        if self.stop_in_place(memory) { Ok(()) } else { Err(self) }
    }

    /// Resets the device and takes back all memory that it holds, as [`stop`](Self::stop) does, for a
    /// kernel whose stack is too small to move the device. Returns `false` if the reset does not
    /// complete; the memory is then not taken back.
    ///
    /// Drop the device then. If it is polled instead, it starts again, unless the driver had failed
    /// before: then only [`restart`](Self::restart) starts it.
    #[must_use]
    pub fn stop_in_place<M: Memory>(&mut self, memory: &mut M) -> bool {
        let is_reset = reset(&mut self.transport);
        if is_reset {
            memory.device_reset();
            self.driver.forget_requests(&self.config);
        }
        is_reset
    }

    /// Returns the driver, whose status and counters can be read.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the numbers of the queues.
    #[must_use]
    pub fn queues(&self) -> Queues {
        self.numbers
    }

    /// Returns why a poll has reset the device, if one has since the last call, for the kernel's log.
    pub fn take_reset(&mut self) -> Option<ResetCause> {
        self.reset_cause.take()
    }

    /// Returns the queue error that made the device fail, or `None`.
    #[must_use]
    pub fn queue_error(&self) -> Option<QueueError> {
        self.queue_error
    }

    /// Returns the transport error that made the device fail, or `None`.
    #[must_use]
    pub fn transport_error(&self) -> Option<TransportError> {
        self.transport_error
    }

    fn fail_transport(&mut self, error: TransportError) {
        self.transport_error.get_or_insert(error);
        self.driver.fail(Failure::ConfigSpace);
    }

    /// Notifies the device again of an outstanding hint. QEMU's hint thread may miss a hint that
    /// arrives just after the thread has found the queue empty: the thread then enables
    /// notifications, but does not check the queue again.
    fn notify_hint_again(&mut self) {
        let [.., hints] = &self.short_queues;
        if hints.outstanding() > 0
            && hints.allows_notification()
            && let Some(number) = self.numbers.number(Queue::Hints)
        {
            self.transport.notify(number);
        }
    }

    /// Takes a used buffer off a queue, or returns `None` if the device has used no buffer.
    fn take_used(&mut self) -> Option<Answer> {
        for queue in Queue::ALL {
            let popped = match self.short_queues.get_mut(queue as usize) {
                Some(short) => short.pop(),
                None => self.reports.pop(),
            };
            match popped {
                Ok(Some(Used { written, .. })) => {
                    let bitmap = match queue {
                        Queue::Inflate => self.messages.bitmap(),
                        _ => InflateBitmap::default(),
                    };
                    return Some(Answer { queue, written, bitmap });
                }
                Ok(None) => {}
                Err(error) => {
                    self.queue_error.get_or_insert(error);
                    self.driver.fail(Failure::Queue(queue));
                }
            }
        }
        None
    }

    #[inline(never)]
    fn send(&mut self, message: &Message) {
        let mut buffers = [MessageBuffers::EMPTY; Ranges::MAX_LEN];
        let with_bitmap = self.driver.features().contains(Features::DEVICE_INIT_ON_INFLATE);
        let chain = self.messages.write(message, with_bitmap, &mut buffers);
        let queue = message.queue();
        #[allow(unsafe_code)]
        let (pushed, wants_notification) = match self.short_queues.get_mut(queue as usize) {
            Some(short) => {
                // SAFETY: buffers that the device reads, and the bitmap that it writes, lie in
                // `messages`. Only `send` writes to `messages`, and never to a buffer of an
                // outstanding request. All other buffers that the device writes are frames that
                // the memory manager keeps out of use until the device has used them.
                (unsafe { short.push(chain) }, short.wants_notification())
            }
            None => {
                // SAFETY: the reason is the same as for `short` above.
                (unsafe { self.reports.push(chain) }, self.reports.wants_notification())
            }
        };
        match (pushed, self.numbers.number(queue)) {
            (Ok(_), Some(number)) if wants_notification => self.transport.notify(number),
            (Ok(_), _) => {}
            (Err(error), _) => {
                self.queue_error = Some(error);
                self.driver.fail(Failure::Queue(queue));
            }
        }
    }
}
