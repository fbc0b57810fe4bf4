//! Tests random sequences of events with all combinations of features. After the last event, the
//! driver must reach the target.

use crate::memory::{Frame, TestMemory};
use crate::world::World;
use core::time::Duration;
use hotmem_virtio::balloon::{DeflateRequest, Features, Obstacle, Queue, Reason};
use proptest::collection::vec;
use proptest::prelude::*;

const FRAMES: usize = 1500;

#[derive(Clone, Debug)]
enum Event {
    Target(u32),
    Hints(u32),
    AskStatistics,
    Use(usize, usize),
    Free(usize, usize),
    Obstacle(bool),
    Needed(u64),
    MustLeave(u64),
    Asleep(usize),
    Awake,
    Steps(u32),
    Wait(Duration),
    JumpTo(Duration),
}

fn event() -> impl Strategy<Value = Event> {
    let place = || (0..FRAMES, 1..900usize);
    prop_oneof![
        (0..FRAMES as u32).prop_map(Event::Target),
        (0..5u32).prop_map(Event::Hints),
        Just(Event::AskStatistics),
        place().prop_map(|(at, len)| Event::Use(at, len)),
        place().prop_map(|(at, len)| Event::Free(at, len)),
        any::<bool>().prop_map(Event::Obstacle),
        (0..600u64).prop_map(Event::Needed),
        (0..600u64).prop_map(Event::MustLeave),
        (0..5usize).prop_map(Event::Asleep),
        Just(Event::Awake),
        (0..30u32).prop_map(Event::Steps),
        (0..3000u64).prop_map(|ms| Event::Wait(Duration::from_millis(ms))),
        (0..100u64).prop_map(|s| Event::JumpTo(Duration::from_secs(s))),
    ]
}

proptest! {
    #![proptest_config(crate::cases::cases(200))]

    #[test]
    fn the_target_is_reached_after_any_sequence_of_events(
        bits in 0..64u64,
        target in 0..FRAMES as u32,
        hides_commands: bool,
        history in vec(event(), 0..60),
    ) {
        let features = Features::from_bits_truncate(bits);
        let mut world = World::new(features, target, TestMemory::new(512, FRAMES));
        world.memory.report_from = Duration::ZERO;
        world.device.hides_commands = hides_commands;
        for event in history {
            match event {
                Event::Target(frames) => world.device.config.num_pages = frames,
                Event::Hints(command) => world.device.request_hints(command),
                Event::AskStatistics if world.used.is_none() => {
                    world.used = world.device.request_statistics();
                }
                Event::AskStatistics => {}
                Event::Use(at, len) => change(&mut world, at, len, Frame::Used),
                Event::Free(at, len) => change(&mut world, at, len, Frame::Free),
                Event::Obstacle(lasts) => world.memory.obstacles.push_back(match lasts {
                    true => Obstacle::Never(Reason::Other("never")),
                    false => Obstacle::Later(Reason::Other("later")),
                }),
                Event::Needed(needed) => world.memory.deflate_request.needed = needed,
                Event::MustLeave(frames) => world.memory.deflate_request.frames_to_replace = frames,
                Event::Asleep(queue) => world.device.asleep.push(Queue::ALL[queue]),
                Event::Awake => world.device.asleep.clear(),
                Event::Steps(n) => (0..n).for_each(|_| {
                    world.step();
                }),
                Event::Wait(time) => { world.run(time); }
                Event::JumpTo(to) => world.now = to,
            }
        }
        world.device.asleep.clear();
        world.memory.obstacles.clear();
        world.memory.deflate_request = DeflateRequest::default();
        world.device.request_hints(1);
        change(&mut world, 0, FRAMES, Frame::Free);
        // Permanent obstacles last until the target changes.
        world.device.config.num_pages = 7;
        world.used = world.used.or_else(|| world.device.answer());
        world.poll();
        for target in [0, 1000, FRAMES as u32, 100] {
            world.device.config.num_pages = target;
            world.run(Duration::from_secs(20));
            world.assert_settled(target);
        }
        prop_assert_eq!(world.memory.count(Frame::Hinted), 0);
        prop_assert_eq!(world.memory.count(Frame::Out), 0);
    }
}

fn change(world: &mut World, at: usize, len: usize, to: Frame) {
    (at..at + len).for_each(|index| world.memory.change(index, to));
}
