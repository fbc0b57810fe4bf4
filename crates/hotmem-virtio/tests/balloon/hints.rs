//! Tests free page hints.

use crate::device::{DONE, STOP};
use crate::memory::{Frame, TestMemory};
use crate::setup::Setup;
use hotmem_virtio::balloon::{Features, Message, Queue, Step};

fn setup() -> Setup {
    Setup::new(Features::FREE_PAGE_HINT, 0, TestMemory::new(0, 2048))
}

/// Makes two setups. The device of the first shows a command until the next command. The device of
/// the second hides the command after the driver has begun it.
fn setups() -> [Setup; 2] {
    let (shows, mut hides) = (setup(), setup());
    hides.device.hides_commands = true;
    [shows, hides]
}

fn commands(setup: &Setup) -> Vec<u32> {
    let command = |message: &Message| match message {
        Message::HintCommand(command) => Some(*command),
        _ => None,
    };
    setup.device.messages.iter().filter_map(command).collect()
}

#[test]
fn nothing_is_hinted_without_a_command() {
    let mut setup = setup();
    assert_eq!(setup.poll(), Step::Idle);
    assert_eq!(setup.device.messages, []);
}

#[test]
fn hints_follow_a_migration_to_its_end() {
    setups().into_iter().for_each(check_hints_of_migration);
}

fn check_hints_of_migration(mut setup: Setup) {
    setup.device.request_hints(0x8000_0000);
    setup.poll();
    assert_eq!(commands(&setup), [0x8000_0000, 0]);
    assert_eq!(setup.memory.count(Frame::Hinted), 2048);
    assert_eq!(setup.device.hinted_ranges.iter().map(|range| range.frames()).sum::<u64>(), 2048);

    // In the next round, hinted memory stays hinted, and only memory freed since then is hinted.
    setup.device.request_hints(STOP);
    setup.poll();
    assert_eq!(
        setup.memory.count(Frame::Hinted),
        2048,
        "the driver releases hinted memory too early"
    );
    setup.device.request_hints(0x8000_0001);
    setup.poll();
    assert_eq!(commands(&setup), [0x8000_0000, 0, 0x8000_0001, 0]);

    setup.device.request_hints(DONE);
    assert_eq!(setup.poll(), Step::Idle);
    assert_eq!(setup.memory.count(Frame::Free), 2048, "the driver does not release hinted memory");
}

/// QEMU changes the command first and the generation afterwards, and hides a command that the driver
/// has begun. If the driver begins the command before the generation changes, the generation changes
/// while the field reads as `STOP`.
#[test]
fn a_generation_that_changes_after_the_command_does_not_stop_the_hints() {
    for generation in [0, 255] {
        let [_, mut setup] = setups();
        setup.device.config.generation = generation;
        setup.poll();
        setup.device.config.free_page_hint_cmd_id = 8;
        setup.step_until(|setup| setup.device.hinted_ranges.len() == 1);
        setup.device.change_generation();
        setup.poll();
        assert_eq!(setup.memory.count(Frame::Hinted), 2048, "the driver stops too early");
        assert_eq!(commands(&setup), [8, 0]);
    }
}

#[test]
fn a_stop_is_obeyed_although_the_generation_of_its_command_came_late() {
    for is_start_seen in [true, false] {
        let [_, mut setup] = setups();
        setup.device.config.free_page_hint_cmd_id = 8;
        setup.step_until(|setup| setup.device.hinted_ranges.len() == 1);
        setup.device.change_generation();
        if is_start_seen {
            setup.step_until(|setup| setup.device.hinted_ranges.len() == 2);
        }
        let hinted = setup.device.hinted_ranges.len();
        setup.device.request_hints(STOP);
        setup.poll();
        // One hint may have been outstanding.
        assert!(setup.device.hinted_ranges.len() <= hinted + 1);
        assert_eq!(commands(&setup), [8, 0]);
    }
}

#[test]
fn a_withdrawn_command_is_ended_before_the_next_begins() {
    for (next, mut setup) in
        [0, 1, 9].into_iter().flat_map(|next| setups().map(|setup| (next, setup)))
    {
        setup.device.request_hints(8);
        setup.step_until(|setup| setup.device.hinted_ranges.len() == 2);
        let hinted = setup.device.hinted_ranges.len();
        setup.device.request_hints(next);
        setup.poll();
        let (expected, stay_hinted): (&[u32], _) = match next {
            0 => (&[8, 0], true),
            1 => (&[8, 0], false),
            _ => (&[8, 0, 9, 0], true),
        };
        assert_eq!(commands(&setup), expected);
        assert_eq!(setup.memory.count(Frame::Hinted) > 0, stay_hinted);
        if next < 2 {
            // One hint may have been outstanding.
            assert!(setup.device.hinted_ranges.len() <= hinted + 1);
        }
    }
}

#[test]
fn hints_are_not_released_while_the_device_has_one() {
    let mut setup = setup();
    setup.device.request_hints(8);
    setup.step_until(|setup| !setup.device.hinted_ranges.is_empty());
    setup.step_until(|setup| matches!(setup.device.unanswered.front(), Some(Message::Hint(_))));
    setup.device.silent_queues = vec![Queue::Hints];
    setup.device.request_hints(DONE);
    let hinted = setup.memory.count(Frame::Hinted);
    setup.poll();
    assert_eq!(setup.memory.count(Frame::Hinted), hinted);
    setup.device.silent_queues.clear();
    setup.answered_queue = setup.device.answer();
    setup.poll();
    assert_eq!(setup.memory.count(Frame::Hinted), 0);
}

impl Setup {
    /// Steps the driver, with a device that answers immediately, until the condition is true.
    fn step_until(&mut self, condition: impl Fn(&Setup) -> bool) {
        for _ in 0..100 {
            if condition(self) {
                return;
            }
            self.answered_queue = self.device.answer();
            self.step();
        }
        panic!("the condition does not become true: {:?}", self.driver);
    }
}
