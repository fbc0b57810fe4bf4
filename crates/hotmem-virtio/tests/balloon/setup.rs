//! Defines a driver with a device and a memory manager, which are checked after every step.

use crate::device::Device;
use crate::memory::{Frame, TestMemory};
use core::time::Duration;
use hotmem_virtio::balloon::{
    Action, Answer, Driver, Features, InflateBitmap, Message, Queue, Status, Step,
};

pub(crate) const MS: Duration = Duration::from_millis(1);

pub(crate) struct Setup {
    pub(crate) device: Device,
    pub(crate) driver: Driver,
    pub(crate) memory: TestMemory,
    pub(crate) now: Duration,
    /// The queue whose answer the driver gets at its next step.
    pub(crate) answered_queue: Option<Queue>,
    /// The number of bytes that the device reports as written in each answer.
    pub(crate) written: u32,
    /// What the device has written to the bitmap of each inflate request.
    pub(crate) bitmap: InflateBitmap,
}

/// The maximal number of steps between two waits.
const MAX_STEPS: u32 = 100_000;

impl Setup {
    pub(crate) fn new(features: Features, target: u32, memory: TestMemory) -> Setup {
        let device = Device::new(target);
        let driver = Driver::new(features, &device.config);
        Setup {
            device,
            driver,
            memory,
            now: Duration::from_secs(1),
            answered_queue: None,
            written: 0,
            bitmap: InflateBitmap::default(),
        }
    }

    /// Steps the driver, and carries out the result.
    pub(crate) fn step(&mut self) -> Step {
        let config = self.device.config;
        let (written, bitmap) = (self.written, self.bitmap);
        let answer = self.answered_queue.take().map(|queue| Answer { queue, written, bitmap });
        let step = self.driver.step(self.now, &config, answer, &mut self.memory);
        match step {
            Step::Ready(Ok(Action::Send(message))) => {
                self.check(&message);
                self.device.send(message);
            }
            Step::Ready(Ok(Action::SetActual(frames))) => self.device.actual_pages = frames,
            _ => {}
        }
        step
    }

    /// Checks that a request agrees with the memory manager's state.
    fn check(&self, message: &Message) {
        let features = self.driver.features();
        assert!(features.contains(message.queue().feature()), "{message:?} was not negotiated");
        match message {
            Message::Inflate(frames) | Message::Deflate(frames) => {
                let mut ranges = frames.ranges();
                assert!(ranges.all(|range| self.memory.all_are(range, Frame::Balloon)));
            }
            Message::Hint(range) => assert!(self.memory.all_are(*range, Frame::Hinted)),
            Message::Report(ranges) => {
                let ranges = ranges.as_slice();
                assert!(ranges.iter().all(|&range| self.memory.all_are(range, Frame::Reporting)));
            }
            Message::Statistics(_) | Message::HintCommand(_) => {}
        }
    }

    /// Steps the driver, with a device that answers immediately, until the driver waits.
    pub(crate) fn poll(&mut self) -> Step {
        for _ in 0..MAX_STEPS {
            let step = self.step();
            if matches!(
                step,
                Step::Ready(Ok(Action::Send(_)))
                    | Step::Ready(Ok(Action::SetActual(_)))
                    | Step::Working
            ) {
                if self.answered_queue.is_none() {
                    self.answered_queue = self.device.answer();
                }
                continue;
            }
            self.answered_queue = self.device.answer();
            if self.answered_queue.is_none() {
                return step;
            }
        }
        panic!("the driver does not wait: {:?}", self.driver);
    }

    /// Polls the driver for this time, at the times that it has returned.
    pub(crate) fn run(&mut self, time: Duration) -> Step {
        let end = self.now + time;
        loop {
            let step = self.poll();
            match step {
                Step::Pending(until) if until <= end => {
                    assert!(until > self.now, "the driver waits for a time in the past");
                    self.now = until;
                }
                _ => {
                    self.now = end;
                    return step;
                }
            }
        }
    }

    /// Checks that the balloon has this size, and that the driver, the device and the memory manager
    /// agree.
    pub(crate) fn assert_settled(&self, frames: u32) {
        assert_eq!(self.driver.status(), Status::Settled, "{:?}", self.driver);
        assert_eq!(self.driver.inflated_frames(), frames.into());
        assert_eq!(self.device.actual_pages, frames);
        assert_eq!(self.device.balloon.len(), frames as usize);
        assert_eq!(self.memory.count(Frame::Balloon), frames as usize);
    }
}
