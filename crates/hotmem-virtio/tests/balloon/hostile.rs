//! Tests the driver with a device that behaves arbitrarily. The fuzz target uses this file.

use crate::memory::{Frame, TestMemory};
use core::time::Duration;
use hotmem_virtio::balloon::{
    Action, Answer, DeflateRequest, Driver, Features, FrameList, FrameNumbers, InflateBitmap,
    Memory, Message, Obstacle, Queue, RawConfig, Reason, Step,
};
use std::collections::BTreeSet;

const FRAMES: usize = 3 * 512;

/// Simulates a device, a memory manager and a clock, whose behaviour these bytes determine. Checks all
/// guarantees of the driver.
pub(crate) fn run_script(script: &[u8]) {
    let mut script = NumberReader(script);
    let features = Features::from_bits_truncate(script.number());
    let mut config = RawConfig { num_pages: script.target(), ..RawConfig::default() };
    let mut driver = Driver::new(features, &config);
    // In some cases the memory crosses the limit of 32-bit frame numbers.
    let base = if script.byte() == 0 { FrameList::FRAME_LIMIT.number() - 700 } else { 512 };
    let mut memory = TestMemory::new(base, FRAMES);
    let mut now = Duration::ZERO;
    let mut outstanding: Vec<Message> = Vec::new();
    let mut in_balloon = BTreeSet::new();
    // The frames that the device says it has initialised, by a valid answer.
    let mut promised = BTreeSet::new();
    let mut failed = None;
    let mut working_steps = 0;
    while !script.is_over() {
        match script.byte() % 16 {
            0 => config.num_pages = script.number() as u32,
            1 | 2 => config.num_pages = script.target(),
            3 => {
                config.free_page_hint_cmd_id = u32::from(script.byte() % 4);
                config.generation = u32::from(script.byte() % 2);
            }
            4 => now = Duration::from_millis(script.number() >> 20),
            5 => memory.obstacles.push_back(script.obstacle()),
            6 => memory.min_free = script.number() as usize % FRAMES,
            7 => {
                let (needed_frames, frames_to_replace) =
                    (script.byte().into(), script.byte().into());
                memory.deflate_request = DeflateRequest { needed_frames, frames_to_replace };
            }
            8 => memory.report_from = Duration::from_millis(script.byte().into()),
            9 => memory.max_run = 1 + script.number() % 600,
            10 => memory.max_report_ranges = 1 + usize::from(script.byte() % 32),
            11 => {
                let state = if script.byte() < 128 { Frame::Free } else { Frame::Used };
                let first = script.number() as usize;
                (0..usize::from(script.byte()))
                    .for_each(|n| memory.change(first % FRAMES + n, state));
            }
            12 if script.byte() < 32 => memory.gives_no_frame = true,
            _ => {}
        }
        now += Duration::from_millis(script.byte().into());
        let answered_queue = match script.byte() {
            0 => Some(Queue::ALL[usize::from(script.byte() % 5)]),
            1..100 if !outstanding.is_empty() => {
                Some(outstanding[usize::from(script.byte()) % outstanding.len()].queue())
            }
            _ => None,
        };
        let written =
            if script.byte() < 64 { script.number() as u32 } else { script.byte().into() };
        let bytes: [u8; InflateBitmap::MAX_BYTES] = core::array::from_fn(|_| script.byte());
        outstanding.retain(|message| {
            let is_answered = answered_queue == Some(message.queue());
            match message {
                Message::Deflate(frames) if is_answered => {
                    frames.as_slice().iter().for_each(|n| assert!(in_balloon.remove(n)));
                }
                Message::Inflate(frames)
                    if is_answered && features.contains(Features::DEVICE_INIT_ON_INFLATE) =>
                {
                    promised.extend(initialised_frames(frames, written, bytes));
                }
                _ => {}
            }
            !is_answered
        });
        let bitmap = InflateBitmap::new(bytes);
        let answer = answered_queue.map(|queue| Answer { queue, written, bitmap });
        let step = driver.step(now, &config, answer, &mut memory);
        working_steps = if step == Step::Working { working_steps + 1 } else { 0 };
        assert!(working_steps <= 100, "the driver does not wait: {driver:?}");
        match step {
            Step::Ready(Ok(Action::Send(message))) => {
                assert_eq!(failed, None, "the driver sends a request to a failed device");
                let queue = message.queue();
                assert!(driver.features().contains(queue.feature()));
                assert!(
                    outstanding.iter().all(|request| request.queue() != queue),
                    "the driver sends a second request on a queue"
                );
                match message {
                    Message::Inflate(frames) | Message::Deflate(frames) => {
                        assert!((1..=256).contains(&frames.frames()));
                        let mut ranges = frames.ranges();
                        assert!(ranges.all(|range| memory.all_are(range, Frame::Balloon)));
                        if queue == Queue::Inflate {
                            frames.as_slice().iter().for_each(|&n| {
                                assert!(in_balloon.insert(n));
                                promised.remove(&u64::from(n));
                            });
                        }
                    }
                    Message::Hint(range) => assert!(memory.all_are(range, Frame::Hinted)),
                    Message::Report(ranges) => {
                        let all = ranges.as_slice();
                        assert!(!all.is_empty() && all.len() <= 32);
                        assert!(all.iter().all(|&range| memory.all_are(range, Frame::Reporting)));
                    }
                    Message::Statistics(_) | Message::HintCommand(_) => {}
                }
                outstanding.push(message);
            }
            Step::Ready(Ok(Action::Reset(queue))) => {
                assert!(outstanding.iter().any(|message| message.queue() == queue));
                outstanding.clear();
                in_balloon.clear();
                promised.clear();
                memory.device_reset();
                driver = Driver::new(features, &config).with_counters_of(&driver);
            }
            Step::Ready(Ok(Action::SetActual(frames))) => {
                assert_eq!(u64::from(frames), driver.inflated_frames())
            }
            Step::Pending(until) => assert!(until > now),
            Step::Ready(Err(failure)) => {
                assert!(failed.is_none_or(|first| first == failure));
                failed = Some(failure);
            }
            Step::Working | Step::Idle => {}
        }
        assert!(driver.inflated_frames() <= memory.count(Frame::Balloon) as u64);
        assert!(memory.initialised_frames.is_subset(&promised));
    }
    memory.device_reset();
    let is_with_device =
        |state: &Frame| !matches!(state, Frame::Used | Frame::Free | Frame::Reported);
    assert!(!memory.frames.iter().any(is_with_device), "some memory is not free after the reset");
}

/// Returns the frames of a request that an answer says to be initialised.
fn initialised_frames(
    frames: &FrameNumbers,
    written: u32,
    bytes: [u8; InflateBitmap::MAX_BYTES],
) -> impl Iterator<Item = u64> {
    let is_valid = written as usize <= frames.as_slice().len().div_ceil(8);
    let valid_bits = if is_valid { 8 * written as usize } else { 0 };
    let bits = (0..valid_bits).map(move |bit| bytes[bit / 8] & 1 << (bit % 8) != 0);
    let numbers: Vec<_> = frames.as_slice().to_vec();
    numbers.into_iter().zip(bits).filter(|&(_, bit)| bit).map(|(number, _)| number.into())
}

/// Reads numbers from bytes. After the last byte, all numbers are 0.
struct NumberReader<'a>(&'a [u8]);

impl NumberReader<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte()))
    }

    /// Returns a valid size.
    fn target(&mut self) -> u32 {
        u32::from(self.byte()) * 7
    }

    fn obstacle(&mut self) -> Obstacle {
        match self.byte() % 3 {
            0 => Obstacle::Working,
            1 => Obstacle::Later(Reason::Other("later")),
            _ => Obstacle::Never(Reason::Other("never")),
        }
    }
}

#[cfg(not(fuzzing))]
mod tests {
    use super::run_script;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::case_count::cases(500))]

        #[test]
        fn the_driver_keeps_its_guarantees_with_any_device(script in vec(any::<u8>(), 0..2048)) {
            run_script(&script);
        }
    }
}
