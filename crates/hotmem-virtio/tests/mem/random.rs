//! Tests random sequences of events: only plugged memory is used, all requests are valid, and the
//! driver reaches the requested size after the last event.

use crate::device::{BUSY, Device, ERROR, Fault, NACK};
use crate::memory::PreparationFailure;
use crate::setup::Setup;
use core::time::Duration;
use hotmem_virtio::mem::{Leftover, Obstacle, Reason};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    /// The requested size becomes this many thousandths of the region.
    Resize(u64),
    /// The driver makes this number of steps.
    Steps(u8),
    Fault(Fault),
    PreparationFailure(PreparationFailure),
    OnlineObstacle(Obstacle),
    /// The unit with this index is pinned, or is not pinned any more.
    Pin(usize, bool),
    /// A new driver begins, and the device forgets the request that it has not answered.
    Restart,
    /// The driver runs for this time.
    Wait(Duration),
    /// The clock jumps to this time.
    JumpTo(Duration),
}

fn event() -> impl Strategy<Value = Event> {
    let fault = prop_oneof![
        prop_oneof![Just(NACK), Just(BUSY), Just(ERROR)].prop_map(Fault::Refuse),
        Just(Fault::ErrorAfterwards),
        (0u32..6).prop_map(Fault::LateAnswer),
    ];
    let failure = prop_oneof![
        Just(PreparationFailure::Obstacle(Obstacle::Working)),
        Just(PreparationFailure::Obstacle(Obstacle::Later(Reason::Other("later")))),
        Just(PreparationFailure::Obstacle(Obstacle::Never(Reason::Other("never")))),
        Just(PreparationFailure::OneUnit),
    ];
    prop_oneof![
        3 => (0u64..=1000).prop_map(Event::Resize),
        6 => any::<u8>().prop_map(|n| Event::Steps(n % 32)),
        3 => fault.prop_map(Event::Fault),
        3 => failure.prop_map(Event::PreparationFailure),
        1 => prop_oneof![
            Just(Obstacle::Working),
            Just(Obstacle::Later(Reason::Other("later"))),
            Just(Obstacle::Never(Reason::Other("never"))),
        ]
        .prop_map(Event::OnlineObstacle),
        2 => Just(Event::Restart),
        1 => any::<(usize, bool)>().prop_map(|(i, on)| Event::Pin(i, on)),
        2 => (0u64..10_000).prop_map(|ms| Event::Wait(Duration::from_millis(ms))),
        1 => any::<u32>().prop_map(|s| Event::JumpTo(Duration::from_secs(s.into()))),
    ]
}

prop_compose! {
    fn device()(
        block_shift in 16u32..=31,
        offset in 0u64..64,
        units in 1u64..200,
        extra_blocks in 0u64..40,
        plugged in vec(any::<bool>(), 0..600),
        requested in 0u64..=1000,
    ) -> Device {
        let block = 1 << block_shift;
        let region = units * block.max(2 << 20) + extra_blocks * block;
        let region = region + (4 << 20).max(block).next_multiple_of(block);
        let mut device = Device::new(block, (4 << 40) + offset * block, region);
        // Plug single blocks and runs of blocks.
        for (i, _) in plugged.iter().enumerate().filter(|(_, on)| **on) {
            for j in [i, i / 2, i / 8] {
                if j < device.blocks.len() {
                    device.preplug(j);
                }
            }
        }
        resize(&mut device, requested);
        device
    }
}

fn resize(device: &mut Device, thousandths: u64) {
    let blocks = device.blocks.len() as u64 * thousandths / 1000;
    device.resize(blocks * device.config.block_size);
}

proptest! {
    #![proptest_config(crate::case_count::cases(400))]

    #[test]
    fn the_requested_size_is_reached_after_any_sequence_of_events(
        device in device(),
        leftover in prop_oneof![Just(Leftover::Adopt), Just(Leftover::UnplugAll)],
        blocks_per_slot in prop_oneof![Just(None), (0u32..=10).prop_map(Some)],
        history in vec(event(), 0..60),
    ) {
        let unit = device.config.block_size.max(2 << 20);
        let mut setup = Setup::new(device);
        // No unit crosses the border of a slot.
        if setup.device.config.addr.is_multiple_of(unit) {
            setup.device.slot_bytes = blocks_per_slot.map(|order| unit << order);
        }
        setup.driver.set_leftover(leftover);
        for event in history {
            match event {
                Event::Resize(to) => resize(&mut setup.device, to),
                Event::Steps(n) => (0..n).for_each(|_| { setup.step(); }),
                Event::Fault(fault) => setup.device.faults.push_back(fault),
                Event::PreparationFailure(failure) => setup.memory.next_failures.push_back(failure),
                Event::OnlineObstacle(obstacle) => setup.memory.online_obstacles.push_back(obstacle),
                Event::Pin(i, on) => {
                    let units = setup.memory.pinned_units.len();
                    setup.memory.pinned_units[i % units] = on;
                }
                Event::Restart => {
                    setup.restart();
                    setup.driver.set_leftover(leftover);
                }
                Event::Wait(time) => { setup.run(time); }
                Event::JumpTo(to) => setup.now = to,
            }
        }
        setup.device.faults.clear();
        setup.memory.next_failures.clear();
        setup.memory.online_obstacles.clear();
        setup.memory.pinned_units.fill(false);
        // Permanent obstacles last until the requested size changes.
        resize(&mut setup.device, 1000);
        setup.poll();
        for target in [0, 700, 1000] {
            resize(&mut setup.device, target);
            setup.run(Duration::from_secs(20));
            setup.assert_reached();
        }
    }
}
