//! Tests random sequences of events with all combinations of features. After the last event, the
//! driver must reach the target.

use crate::device::DONE;
use crate::memory::{Frame, TestMemory};
use crate::setup::Setup;
use core::time::Duration;
use hotmem_virtio::balloon::{DeflateRequest, Features, Obstacle, Queue, Reason};
use proptest::collection::vec;
use proptest::prelude::*;

const FRAMES: usize = 1500;

#[derive(Clone, Debug)]
enum Event {
    Target(u32),
    HintCommand(u32),
    RequestStatistics,
    /// The kernel uses frames: the index of the first, and their number.
    Use(usize, usize),
    Free(usize, usize),
    /// An inflation fails: permanently, or for some time.
    Obstacle(bool),
    NeededFrames(u64),
    FramesToReplace(u64),
    /// The device stops answering on the queue with this index.
    SilenceQueue(usize),
    /// The device answers on all queues.
    AnswerAgain,
    Steps(u32),
    Wait(Duration),
    JumpTo(Duration),
}

fn event() -> impl Strategy<Value = Event> {
    let frames = || (0..FRAMES, 1..900usize);
    prop_oneof![
        (0..FRAMES as u32).prop_map(Event::Target),
        (0..5u32).prop_map(Event::HintCommand),
        Just(Event::RequestStatistics),
        frames().prop_map(|(first, len)| Event::Use(first, len)),
        frames().prop_map(|(first, len)| Event::Free(first, len)),
        any::<bool>().prop_map(Event::Obstacle),
        (0..600u64).prop_map(Event::NeededFrames),
        (0..600u64).prop_map(Event::FramesToReplace),
        (0..5usize).prop_map(Event::SilenceQueue),
        Just(Event::AnswerAgain),
        (0..30u32).prop_map(Event::Steps),
        (0..3000u64).prop_map(|ms| Event::Wait(Duration::from_millis(ms))),
        (0..100u64).prop_map(|s| Event::JumpTo(Duration::from_secs(s))),
    ]
}

proptest! {
    #![proptest_config(crate::case_count::cases(200))]

    #[test]
    fn the_target_is_reached_after_any_sequence_of_events(
        bits in 0..256u64,
        target in 0..FRAMES as u32,
        hides_commands: bool,
        history in vec(event(), 0..60),
    ) {
        let features = Features::from_bits_truncate(bits);
        let mut setup = Setup::new(features, target, TestMemory::new(512, FRAMES));
        setup.memory.report_from = Duration::ZERO;
        setup.device.hides_commands = hides_commands;
        for event in history {
            match event {
                Event::Target(target) => setup.device.config.num_pages = target,
                Event::HintCommand(command) => setup.device.request_hints(command),
                Event::RequestStatistics if setup.answered_queue.is_none() => {
                    setup.answered_queue = setup.device.request_statistics();
                }
                Event::RequestStatistics => {}
                Event::Use(first, len) => change(&mut setup, first, len, Frame::Used),
                Event::Free(first, len) => change(&mut setup, first, len, Frame::Free),
                Event::Obstacle(permanent) => setup.memory.obstacles.push_back(match permanent {
                    true => Obstacle::Never(Reason::Other("never")),
                    false => Obstacle::Later(Reason::Other("later")),
                }),
                Event::NeededFrames(needed) => setup.memory.deflate_request.needed_frames = needed,
                Event::FramesToReplace(frames) => setup.memory.deflate_request.frames_to_replace = frames,
                Event::SilenceQueue(queue) => setup.device.silent_queues.push(Queue::ALL[queue]),
                Event::AnswerAgain => setup.device.silent_queues.clear(),
                Event::Steps(n) => (0..n).for_each(|_| {
                    setup.step();
                }),
                Event::Wait(time) => { setup.run(time); }
                Event::JumpTo(to) => setup.now = to,
            }
        }
        setup.device.silent_queues.clear();
        setup.memory.obstacles.clear();
        setup.memory.deflate_request = DeflateRequest::default();
        setup.device.request_hints(DONE);
        change(&mut setup, 0, FRAMES, Frame::Free);
        // Permanent obstacles last until the target changes.
        setup.device.config.num_pages = 7;
        setup.answered_queue = setup.answered_queue.or_else(|| setup.device.answer());
        setup.poll();
        for target in [0, 1000, FRAMES as u32, 100] {
            setup.device.config.num_pages = target;
            setup.run(Duration::from_secs(20));
            setup.assert_settled(target);
        }
        prop_assert_eq!(setup.memory.count(Frame::Hinted), 0);
        prop_assert_eq!(setup.memory.count(Frame::Reporting), 0);
    }
}

fn change(setup: &mut Setup, first: usize, len: usize, to: Frame) {
    (first..first + len).for_each(|index| setup.memory.change(index, to));
}
