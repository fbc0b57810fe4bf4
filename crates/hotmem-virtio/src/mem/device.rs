//! Runs the driver on a [`Transport`] of the virtio-drivers crate (PCI, MMIO).

use super::config::RawConfig;
use super::driver::{Driver, Step};
use super::leftover::Leftover;
use super::memory::Memory;
use super::request::{Request, Response};
use super::set_up::{InitError, Queue, REQUEST_QUEUE, start, steady_config};
use super::status::{Failure, ResetCause};
use crate::barrier::order_reads;
use crate::dma::DmaMemory;
use crate::handshake::{Stop, reset, set_failed, stop_of};
use crate::queue::{Buffer, QueueError};
use core::time::Duration;
use virtio_drivers::Error as TransportError;
use virtio_drivers::transport::Transport;

/// A virtio-mem device and its driver.
///
/// Poll the device when it interrupts, and at the time that the last poll returned.
#[derive(Debug)]
pub struct Device<T: Transport> {
    // The transport is the first field, so that dropping it resets the device before the memory of
    // the queue is freed.
    transport: T,
    queue: Queue,
    messages: DmaMemory,
    config: RawConfig,
    driver: Driver,
    /// Whether the device was started, and the last attempt to start it again has not failed.
    is_started: bool,
    queue_error: Option<QueueError>,
    transport_error: Option<TransportError>,
    /// Why the device could not be started again.
    restart_error: Option<InitError>,
    /// The number of times that the device was started again.
    resets: u64,
    /// The cause of the last reset that the kernel has not been told of.
    reset_cause: Option<ResetCause>,
    /// The number of answers before the last reset or the start.
    answers_at_reset: u64,
    /// The number of consecutive resets without an answer in between.
    resets_without_answer: u32,
}

/// The progress of a device. It is ready only if the driver has stopped because of a failure. If it
/// is pending until a time, or idle, poll the device at that time, or earlier if the device
/// interrupts.
pub type Progress = hotmem::Progress<Failure, Duration>;

/// The offsets of the request and of the response in `messages`, and the size of `messages`.
const REQUEST: usize = 0;
const RESPONSE: usize = 32;
const MESSAGES_SIZE: usize = 64;
const REQUEST_BYTES: u32 = 24;
const RESPONSE_BYTES: u32 = 10;
const _: () = assert!(REQUEST_BYTES as usize == Request::SIZE);
const _: () = assert!(RESPONSE_BYTES as usize == Response::SIZE);
/// The number of steps in one poll after which the configuration is read again even without an
/// answer.
const STEPS_PER_CONFIG_READ: u32 = 64;
/// The number of consecutive resets without an answer after which the driver fails.
const MAX_RESETS: u32 = 3;
/// The delay before a configuration that keeps changing is read again.
const UNSTEADY_WAIT: Duration = Duration::from_millis(10);

impl<T: Transport> Device<T> {
    /// The size in bytes of the shared memory that the device needs.
    pub const MEMORY_SIZE: usize = Queue::BYTES + MESSAGES_SIZE;

    /// Starts the device: resets it, negotiates features, and sets up its queue. The reset leaves
    /// plugged memory plugged. `new` does not plug or unplug memory yet.
    ///
    /// # Errors
    /// The reason why the device cannot be driven. The device's status is set to FAILED, and the
    /// transport is dropped.
    pub fn new(mut transport: T, memory: DmaMemory) -> Result<Device<T>, InitError> {
        let (mut queue, messages) = Queue::new(memory).ok_or(InitError::SharedMemory)?;
        if messages.len() < MESSAGES_SIZE {
            return Err(InitError::SharedMemory);
        }
        let (config, driver) = start(&mut transport, &mut queue)?;
        Ok(Device {
            transport,
            queue,
            messages,
            config,
            driver,
            is_started: true,
            queue_error: None,
            transport_error: None,
            restart_error: None,
            resets: 0,
            reset_cause: None,
            answers_at_reset: 0,
            resets_without_answer: 0,
        })
    }

    /// Starts the device again, for example after it has failed. Plugged memory stays plugged, and
    /// the driver finds out which blocks are plugged. The counters of the driver continue.
    ///
    /// # Errors
    /// The reason why the device cannot be driven, for example because its region or its block size
    /// has changed. The device's status is set to FAILED. The driver sends no request any more, and
    /// the next poll fails, unless a later restart succeeds.
    pub fn restart(&mut self) -> Result<(), InitError> {
        self.resets_without_answer = 0;
        self.reset_and_start()
    }

    fn reset_and_start(&mut self) -> Result<(), InitError> {
        let (leftover, statistics) = (self.driver.leftover, self.driver.statistics);
        self.is_started = false;
        let mut started = start(&mut self.transport, &mut self.queue);
        // The memory manager knows the region, whose memory may be in use (5.15.4.2).
        if let Ok((config, _)) = &started
            && let Err(error) = self.driver.config().updated(config)
        {
            set_failed(&mut self.transport);
            started = Err(InitError::Config(error));
        }
        let (config, driver) = started.inspect_err(|&error| self.restart_error = Some(error))?;
        self.is_started = true;
        (self.config, self.driver) = (config, driver);
        (self.queue_error, self.transport_error, self.restart_error) = (None, None, None);
        self.driver.statistics = statistics;
        self.resets = self.resets.wrapping_add(1);
        self.set_leftover(leftover);
        Ok(())
    }

    /// Starts a device again that has stopped for this cause: it may have completed the requests that
    /// it had, or not (2.1.1), and the driver finds that out.
    ///
    /// # Errors
    /// The device has failed, cannot be started again, or was reset too often without an answer.
    fn recover(&mut self, stop: Stop) -> Result<(), Failure> {
        let cause = match stop {
            Stop::NeedsReset => ResetCause::NeedsReset,
            Stop::ResetItself => ResetCause::ResetItself,
            Stop::Failed => return Err(Failure::NotRunning),
        };
        let answers = self.driver.statistics.answers();
        let has_answered = answers != self.answers_at_reset;
        self.answers_at_reset = answers;
        self.resets_without_answer = if has_answered { 1 } else { self.resets_without_answer + 1 };
        if self.resets_without_answer > MAX_RESETS {
            self.is_started = false;
            set_failed(&mut self.transport);
            return Err(Failure::NotRunning);
        }
        self.reset_and_start().map_err(|_| Failure::NotRunning)?;
        self.reset_cause = Some(cause);
        Ok(())
    }

    /// Stops the device: resets it, so that it accesses no shared memory any more, and drops the
    /// transport. Plugged memory stays plugged, and memory in transition stays so until a driver
    /// begins again with the same memory manager.
    ///
    /// # Errors
    /// Returns the device if its reset does not complete: it may still write to the shared memory. It
    /// sends no request any more, and fails at the next poll.
    #[expect(clippy::result_large_err, reason = "the error is the device, which the caller had")]
    pub fn stop(mut self) -> Result<(), Device<T>> {
        if reset(&mut self.transport) {
            return Ok(());
        }
        self.is_started = false;
        Err(self)
    }

    /// Sets how to treat memory that is already plugged at the start: see [`Driver::set_leftover`].
    /// Call it before the first poll.
    pub fn set_leftover(&mut self, leftover: Leftover) {
        self.driver.set_leftover(leftover);
    }

    /// Runs at most `budget` steps of the driver. For each step it takes the device's answer, reads
    /// the configuration if necessary, and sends the next request.
    ///
    /// A step costs one call of [`Memory`]. Each answer, and every 64th step without an answer,
    /// costs about 20 reads of configuration space. A device that has stopped is reset and started
    /// again: [`take_reset`](Self::take_reset) tells why.
    pub fn poll<M: Memory>(&mut self, now: Duration, budget: u32, memory: &mut M) -> Progress {
        let mut is_steady = true;
        for step in 0..budget {
            if !self.is_started {
                return Progress::Ready(self.driver.fail(now, Failure::NotRunning, memory));
            }
            let answer = self.take_answer();
            if answer.is_some() || step % STEPS_PER_CONFIG_READ == 0 {
                // An answer of a device that has stopped is not relied on (2.1.1).
                let observed = match stop_of(self.transport.get_status()) {
                    Some(_) if self.driver.has_failed() => Err(Failure::NotRunning),
                    Some(stop) => match self.recover(stop) {
                        Ok(()) => continue,
                        Err(failure) => Err(failure),
                    },
                    None => self.observe(),
                };
                match observed {
                    Ok(steady) => is_steady = steady,
                    Err(failure) => {
                        return Progress::Ready(self.driver.fail(now, failure, memory));
                    }
                }
            }
            let answer = answer.as_ref().map(|(bytes, len)| bytes.get(..*len).unwrap_or(bytes));
            let progress = match self.driver.step(now, &self.config, answer, memory) {
                Step::Ready(Ok(request)) => {
                    self.send(&request);
                    continue;
                }
                Step::Working => continue,
                Step::Pending(until) => Progress::Pending(until),
                Step::Idle => Progress::Idle,
                Step::Ready(Err(failure)) => return Progress::Ready(failure),
            };
            // The configuration that could not be read may contain a new requested size, so read it
            // again soon.
            let next_read = now.saturating_add(UNSTEADY_WAIT);
            return match progress {
                Progress::Pending(until) if until < next_read => progress,
                _ if !is_steady => Progress::Pending(next_read),
                _ => progress,
            };
        }
        Progress::Working
    }

    /// Asks the device not to interrupt when it has answered, for a kernel that polls. The device
    /// still interrupts when its configuration changes; only the transport can prevent that.
    pub fn suppress_interrupts(&mut self) {
        self.queue.suppress_interrupts();
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

    /// Returns the driver, whose status and counters can be read.
    #[must_use]
    pub fn driver(&self) -> &Driver {
        &self.driver
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

    /// Returns why the device could not be started again, or `None` if it runs.
    #[must_use]
    pub fn restart_error(&self) -> Option<InitError> {
        self.restart_error
    }

    /// Returns how often the device was started again, by a poll or by [`restart`](Self::restart). The
    /// number wraps around.
    #[must_use]
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// Returns why a poll has reset the device, if one has since the last call, for the kernel's log.
    pub fn take_reset(&mut self) -> Option<ResetCause> {
        self.reset_cause.take()
    }

    /// Reads the configuration. Returns whether it is consistent. If not, the last consistent one
    /// stays valid.
    fn observe(&mut self) -> Result<bool, Failure> {
        match steady_config(&self.transport, &self.config) {
            Ok(config) => {
                self.config = config.unwrap_or(self.config);
                Ok(config.is_some())
            }
            Err(error) => {
                self.transport_error = Some(error);
                Err(Failure::ConfigSpace)
            }
        }
    }

    fn send(&mut self, request: &Request) {
        self.messages.write(REQUEST, request.to_bytes());
        // Fill the buffer with bytes that are not a valid response, so that bytes that the device
        // does not write do not look like an answer.
        self.messages.write(RESPONSE, [0xff; Response::SIZE]);
        let chain = [
            Buffer {
                device_addr: self.messages.device_addr() + REQUEST as u64,
                len: REQUEST_BYTES,
                device_writes: false,
            },
            Buffer {
                device_addr: self.messages.device_addr() + RESPONSE as u64,
                len: RESPONSE_BYTES,
                device_writes: true,
            },
        ];
        // SAFETY: both buffers lie in `messages`, which only this device and its driver use. Only
        // `send` writes the buffers, and the driver sends nothing while a request is outstanding.
        #[allow(unsafe_code)]
        let pushed = unsafe { self.queue.push(&chain) };
        match pushed {
            Ok(_) if self.queue.wants_notification() => self.transport.notify(REQUEST_QUEUE),
            Ok(_) => {}
            Err(error) => self.queue_error = Some(error),
        }
    }

    /// Returns the bytes of the device's answer, if it has answered. A corrupted queue counts as an
    /// answer of no bytes.
    fn take_answer(&mut self) -> Option<([u8; Response::SIZE], usize)> {
        if self.queue_error.is_none() {
            match self.queue.pop() {
                Ok(None) => return None,
                Ok(Some(used)) => {
                    return Some((self.messages.read(RESPONSE), used.written as usize));
                }
                Err(error) => self.queue_error = Some(error),
            }
        }
        Some(([0; Response::SIZE], 0))
    }
}
