//! Tests random sequences of events.

use super::*;
use proptest::{collection::vec, prelude::*};

#[derive(Clone, Debug)]
enum Event {
    Allocate(u64),
    Free(usize),
    Target(u32),
    Hints(u32),
    Need(u64),
    Migrate(u64),
    Asleep(usize),
    Awake,
    Steps(u32),
    Run(u64),
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => prop_oneof![Just(1), 2..64u64, Just(BLOCK), 600..9000u64].prop_map(Event::Allocate),
        4 => any::<usize>().prop_map(Event::Free),
        1 => (0..60_000u32).prop_map(Event::Target),
        1 => (0..4u32).prop_map(Event::Hints),
        1 => (0..5000u64).prop_map(Event::Need),
        2 => (0..SIZE / 4096).prop_map(Event::Migrate),
        1 => (0..5usize).prop_map(Event::Asleep),
        1 => Just(Event::Awake),
        4 => (1..40u32).prop_map(Event::Steps),
        2 => (0..700u64).prop_map(Event::Run),
        1 => Just(Event::Reset),
    ]
}

proptest! {
    #![proptest_config(crate::cases::cases(10))]

    #[test]
    fn no_frame_has_two_owners(history in vec(event(), 1..80), eager: bool) {
        let machine = Machine::new();
        let _hotplug = machine.boot();
        let settings = if eager { Settings::EAGER } else { settings_with_rounds() };
        let mut world = World::new(&machine, FEATURES, settings);
        for event in history {
            match event {
                Event::Allocate(frames) => world.allocate(frames),
                Event::Free(which) => world.free(which),
                Event::Target(frames) => world.device.config.num_pages = frames,
                Event::Hints(command) => world.device.request_hints(command),
                Event::Need(frames) => world.memory.need(frames),
                Event::Migrate(pfn) => {
                    let used = PfnRange::with_len(Pfn::new(pfn).unwrap(), 1).unwrap();
                    let _ = world.memory.migrate(used);
                }
                Event::Asleep(queue) => world.device.asleep.push(Queue::ALL[queue]),
                Event::Awake => world.device.asleep.clear(),
                Event::Steps(n) => {
                    for _ in 0..n {
                        world.used = world.used.or_else(|| world.device.answer());
                        world.step();
                    }
                }
                Event::Run(ms) => {
                    world.device.asleep.clear();
                    world.run(Duration::from_millis(ms));
                }
                Event::Reset => {
                    world.reset();
                }
            }
        }
        world.check();
        world.device.asleep.clear();
        world.device.config.num_pages = 0;
        world.device.request_hints(1);
        world.memory.need(0);
        world.run(Duration::from_secs(60));
        world.check();
        prop_assert_eq!(world.driver.status(), Status::Settled);
        prop_assert_eq!(world.memory.inflated_frames(), 0);
        while !world.owned.is_empty() {
            world.free(0);
        }
        world.run(Duration::from_secs(60));
        let counts = machine.frames.counts();
        prop_assert_eq!(counts.isolated, 0);
        prop_assert_eq!(counts.reported, counts.free_whole);
    }
}
