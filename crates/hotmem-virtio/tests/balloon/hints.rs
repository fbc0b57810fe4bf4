//! Tests free page hints.

use crate::memory::{Frame, TestMemory};
use crate::world::World;
use hotmem_virtio::balloon::{Features, Message, Queue, Step};

fn world() -> World {
    World::new(Features::FREE_PAGE_HINT, 0, TestMemory::new(0, 2048))
}

/// Makes two worlds. The device of the first shows a command until the next command. The device of
/// the second hides the command after the driver has begun it.
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
    worlds().into_iter().for_each(check_hints_of_migration);
}

fn check_hints_of_migration(mut world: World) {
    world.device.request_hints(0x8000_0000);
    world.poll();
    assert_eq!(commands(&world), [0x8000_0000, 0]);
    assert_eq!(world.memory.count(Frame::Hinted), 2048);
    assert_eq!(world.device.hinted.iter().map(|range| range.frames()).sum::<u64>(), 2048);

    // In the next round, hinted memory stays hinted, and only memory freed since then is hinted.
    world.device.request_hints(0);
    world.poll();
    assert_eq!(
        world.memory.count(Frame::Hinted),
        2048,
        "the driver releases hinted memory too early"
    );
    world.device.request_hints(0x8000_0001);
    world.poll();
    assert_eq!(commands(&world), [0x8000_0000, 0, 0x8000_0001, 0]);

    world.device.request_hints(1);
    assert_eq!(world.poll(), Step::Idle);
    assert_eq!(world.memory.count(Frame::Free), 2048, "the driver does not release hinted memory");
}

/// QEMU changes the command first and the generation afterwards, and hides a command that has begun.
/// If the driver begins the command in between, the generation changes while the field reads as a
/// stop.
#[test]
fn a_generation_that_changes_after_the_command_does_not_stop_the_hints() {
    for generation in [0, 255] {
        let [_, mut world] = worlds();
        world.device.config.generation = generation;
        world.poll();
        world.device.config.free_page_hint_cmd_id = 8;
        world.step_until(|world| world.device.hinted.len() == 1);
        world.device.change_generation();
        world.poll();
        assert_eq!(world.memory.count(Frame::Hinted), 2048, "the driver stops too early");
        assert_eq!(commands(&world), [8, 0]);
    }
}

#[test]
fn a_stop_is_obeyed_although_the_generation_of_its_command_came_late() {
    for is_start_seen in [true, false] {
        let [_, mut world] = worlds();
        world.device.config.free_page_hint_cmd_id = 8;
        world.step_until(|world| world.device.hinted.len() == 1);
        world.device.change_generation();
        if is_start_seen {
            world.step_until(|world| world.device.hinted.len() == 2);
        }
        let hinted = world.device.hinted.len();
        world.device.request_hints(0);
        world.poll();
        // One hint may have been outstanding.
        assert!(world.device.hinted.len() <= hinted + 1);
        assert_eq!(commands(&world), [8, 0]);
    }
}

#[test]
fn a_withdrawn_command_is_ended_before_the_next_begins() {
    for (next, mut world) in [0, 1, 9].into_iter().flat_map(|next| worlds().map(|w| (next, w))) {
        world.device.request_hints(8);
        world.step_until(|world| world.device.hinted.len() == 2);
        let hinted = world.device.hinted.len();
        world.device.request_hints(next);
        world.poll();
        let (expected, held): (&[u32], _) = match next {
            0 => (&[8, 0], true),
            1 => (&[8, 0], false),
            _ => (&[8, 0, 9, 0], true),
        };
        assert_eq!(commands(&world), expected);
        assert_eq!(world.memory.count(Frame::Hinted) > 0, held);
        if next < 2 {
            // One hint may have been outstanding.
            assert!(world.device.hinted.len() <= hinted + 1);
        }
    }
}

#[test]
fn hints_are_not_released_while_the_device_has_one() {
    let mut world = world();
    world.device.request_hints(8);
    world.step_until(|world| !world.device.hinted.is_empty());
    world.step_until(|world| matches!(world.device.waiting.front(), Some(Message::Hint(_))));
    world.device.asleep = vec![Queue::Hints];
    world.device.request_hints(1);
    let held = world.memory.count(Frame::Hinted);
    world.poll();
    assert_eq!(world.memory.count(Frame::Hinted), held);
    world.device.asleep.clear();
    world.used = world.device.answer();
    world.poll();
    assert_eq!(world.memory.count(Frame::Hinted), 0);
}

impl World {
    /// Steps the driver, with a device that answers immediately, until the condition is true.
    fn step_until(&mut self, is_so: impl Fn(&World) -> bool) {
        for _ in 0..100 {
            if is_so(self) {
                return;
            }
            self.used = self.device.answer();
            self.step();
        }
        panic!("the condition does not become true: {:?}", self.driver);
    }
}
