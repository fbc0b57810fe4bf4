//! Tests of free page hints.

use crate::memory::{Frame, TestMemory};
use crate::world::World;
use hotmem_virtio::balloon::{Features, Message, Queue, Step};

fn world() -> World {
    World::new(Features::FREE_PAGE_HINT, 0, TestMemory::new(0, 2048))
}

/// Makes two worlds: one whose device shows a command until the next one, and one whose device
/// hides it.
fn worlds() -> [World; 2] {
    let (shows, mut hides) = (world(), world());
    hides.device.hides_commands = true;
    [shows, hides]
}

fn commands(world: &World) -> Vec<u32> {
    let command = |message: &Message| match message {
        Message::HintCommand(command) => Some(*command),
        _ => None,
    };
    world.device.sent.iter().filter_map(command).collect()
}

#[test]
fn nothing_is_hinted_without_a_command() {
    let mut world = world();
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.device.sent, []);
}

#[test]
fn hints_follow_a_migration_to_its_end() {
    worlds().into_iter().for_each(migrates);
}

fn migrates(mut world: World) {
    world.device.ask_hints(0x8000_0000);
    world.poll();
    assert_eq!(commands(&world), [0x8000_0000, 0]);
    assert_eq!(world.memory.count(Frame::Hinted), 2048);
    assert_eq!(world.device.hinted.iter().map(|range| range.frames()).sum::<u64>(), 2048);

    // The next round: hinted memory stays hinted, and memory freed since then is new.
    world.device.ask_hints(0);
    world.poll();
    assert_eq!(world.memory.count(Frame::Hinted), 2048, "held");
    world.device.ask_hints(0x8000_0001);
    world.poll();
    assert_eq!(commands(&world), [0x8000_0000, 0, 0x8000_0001, 0]);

    world.device.ask_hints(1);
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.memory.count(Frame::Free), 2048, "released");
}

#[test]
fn a_withdrawn_command_is_ended_before_the_next_begins() {
    for (next, mut world) in [0, 1, 9].into_iter().flat_map(|next| worlds().map(|w| (next, w))) {
        world.device.ask_hints(8);
        world.step_until(|world| world.device.hinted.len() == 2);
        let hinted = world.device.hinted.len();
        world.device.ask_hints(next);
        world.poll();
        let (expected, held): (&[u32], _) = match next {
            0 => (&[8, 0], true),
            1 => (&[8, 0], false),
            _ => (&[8, 0, 9, 0], true),
        };
        assert_eq!(commands(&world), expected);
        assert_eq!(world.memory.count(Frame::Hinted) > 0, held);
        if next < 2 {
            // One may have been outstanding.
            assert!(world.device.hinted.len() <= hinted + 1);
        }
    }
}

#[test]
fn hints_are_not_released_while_one_is_with_the_device() {
    let mut world = world();
    world.device.ask_hints(8);
    world.step_until(|world| !world.device.hinted.is_empty());
    world.step_until(|world| matches!(world.device.waiting.front(), Some(Message::Hint(_))));
    world.device.asleep = vec![Queue::Hints];
    world.device.ask_hints(1);
    let held = world.memory.count(Frame::Hinted);
    world.poll();
    assert_eq!(world.memory.count(Frame::Hinted), held);
    world.device.asleep.clear();
    world.used = world.device.answer();
    world.poll();
    assert_eq!(world.memory.count(Frame::Hinted), 0);
}

impl World {
    /// Steps the driver, with a device that answers at once.
    fn step_until(&mut self, is_so: impl Fn(&World) -> bool) {
        for _ in 0..100 {
            if is_so(self) {
                return;
            }
            self.used = self.device.answer();
            self.step();
        }
        panic!("too many steps: {:?}", self.driver);
    }
}
