//! Tests random sequences of events with the engine.

use crate::device::{BUSY, ERROR, Fault, NACK};
use crate::machine::{Guest, MIB, Machine};
use core::time::Duration;
use hotmem::{AllocRequest, OnlineType};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    /// The requested size becomes this many hundredths of the region.
    Resize(u64),
    Steps(u8),
    /// The driver runs for this number of milliseconds.
    Wait(u16),
    Fault(Fault),
    /// A new driver begins, and the device forgets the request that it has not answered.
    Restart,
    /// The kernel allocates this number of runs of this number of frames.
    Allocate(u8, u64),
    Free(prop::sample::Index),
    /// Whether the kernel's allocations are pinned.
    Pin(bool),
    /// Whether the kernel vetoes offlining.
    Veto(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let fault = prop_oneof![
        prop_oneof![Just(NACK), Just(BUSY), Just(ERROR)].prop_map(Fault::Refuse),
        Just(Fault::ErrorAfterwards),
        (0u32..6).prop_map(Fault::LateAnswer),
    ];
    prop_oneof![
        4 => (0u64..=100).prop_map(Event::Resize),
        6 => (0u8..32).prop_map(Event::Steps),
        2 => (0u16..5000).prop_map(Event::Wait),
        3 => fault.prop_map(Event::Fault),
        2 => Just(Event::Restart),
        3 => (1u8..50, prop_oneof![Just(1u64), Just(7), Just(64), Just(512), Just(5000)])
            .prop_map(|(count, frames)| Event::Allocate(count, frames)),
        2 => any::<prop::sample::Index>().prop_map(Event::Free),
        1 => any::<bool>().prop_map(Event::Pin),
        1 => any::<bool>().prop_map(Event::Veto),
    ]
}

proptest! {
    #![proptest_config(crate::case_count::cases(100))]

    #[test]
    fn the_requested_size_is_reached_after_any_sequence_of_events(
        block_shift in 18u32..=26,
        online in prop_oneof![
            Just(OnlineType::Movable), Just(OnlineType::Kernel), Just(OnlineType::Offline),
        ],
        tables in 0u64..2,
        history in vec(event(), 0..60),
    ) {
        let machine = Machine::new();
        let region = 768 * MIB;
        let mut guest = Guest::new(&machine, 1 << block_shift, region, online);
        guest.kernel.table_frames_per_pageblock = tables;
        let hundredth = |n: u64| (region * n / 100) >> block_shift << block_shift;
        for event in history {
            match event {
                Event::Resize(n) => guest.resize(hundredth(n)),
                Event::Steps(n) => (0..n).for_each(|_| { guest.step(); }),
                Event::Wait(ms) => { guest.run(Duration::from_millis(ms.into())); }
                Event::Fault(fault) => guest.device.faults.push_back(fault),
                Event::Restart => guest.begin_new_driver(),
                Event::Allocate(count, frames) => {
                    guest.kernel.allocate(count.into(), AllocRequest::frames(frames).movable());
                    guest.kernel.allocate(1, AllocRequest::frames(frames));
                }
                Event::Free(index) => {
                    if !guest.kernel.allocations.is_empty() {
                        let index = index.index(guest.kernel.allocations.len());
                        drop(guest.kernel.allocations.swap_remove(index));
                    }
                }
                Event::Pin(on) => guest.kernel.has_pinned_allocations = on,
                Event::Veto(on) => guest.kernel.vetoes_offlining = on,
            }
            guest.check_allocations();
        }
        guest.kernel.free_all();
        guest.kernel.vetoes_offlining = false;
        guest.kernel.has_pinned_allocations = false;
        guest.device.faults.clear();
        for n in [0, 100, 40, 0] {
            guest.resize(hundredth(n));
            guest.run(Duration::from_secs(20));
            guest.assert_reached();
        }
        prop_assert_eq!(guest.kernel.tables, []);
    }
}
