//! Tests that an operation of a device on one instance of the engine cannot continue on another
//! instance.

use crate::machine::{Engine, GIB, MIB, Machine, REGION_ADDR};
use hotmem::{Budget, Bytes, Counts, NoHooks, OneCpu, OnlineType, PfnRange};
use hotmem_testkit::Validated as _;
use hotmem_virtio::mem::{HotplugMemory, Memory, Unplug};

const UNIT: u64 = 512;

fn region() -> PfnRange {
    PfnRange::from_bytes(REGION_ADDR, Bytes(GIB)).unwrap()
}

/// The first quarter of the region.
fn quarter() -> PfnRange {
    PfnRange::from_bytes(REGION_ADDR, Bytes(256 * MIB)).unwrap()
}

/// Boots two machines, announces the region on both, and runs `test` with a device of the first
/// machine.
fn with_two_instances(
    test: impl for<'f> FnOnce(&mut HotplugMemory<'f, OneCpu>, &mut Engine<'f>, &mut Engine<'f>),
) {
    let machines = [Machine::new(), Machine::new()];
    let [mut first, mut second] = [0, 1].map(|nth| machines[nth].boot());
    first.announce(region()).unwrap();
    second.announce(region()).unwrap();
    let mut memory = HotplugMemory::new(OnlineType::Movable, Budget::UNLIMITED);
    test(&mut memory, &mut first, &mut second);
}

fn counts(instances: [&Engine<'_>; 2]) -> [Counts; 2] {
    instances.map(|instance| instance.frames().validated().unwrap())
}

#[test]
fn a_plug_does_not_continue_on_another_instance() {
    with_two_instances(|memory, first, second| {
        let prepared = memory.bind(first, &mut NoHooks).unwrap().prepare_plug(quarter(), UNIT);
        assert_eq!(prepared, Ok(quarter()));
        let before = counts([first, second]);
        assert!(memory.bind(second, &mut NoHooks).is_err());
        assert_eq!(counts([first, second]), before);
        let mut hooks = NoHooks;
        let mut bound = memory.bind(first, &mut hooks).unwrap();
        bound.plugged(quarter());
        assert_eq!(bound.bring_online(), Ok(()));
        drop(bound);
        assert_eq!(first.frames().counts().movable, quarter().frames());
    });
}

#[test]
fn an_unplug_does_not_continue_on_another_instance() {
    with_two_instances(|memory, first, second| {
        for instance in [&mut *first, &mut *second] {
            instance.add(quarter()).unwrap();
            instance.online(quarter(), OnlineType::Movable, &mut NoHooks).unwrap();
        }
        let initial = first.frames().counts();
        let mut hooks = NoHooks;
        let total = quarter().frames();
        let unplug = Unplug { region: region(), total, max_frames: UNIT, unit: UNIT };
        for succeeds in [true, false] {
            let prepared =
                memory.bind(first, &mut NoHooks).unwrap().prepare_unplug(unplug).unwrap();
            let before = counts([first, second]);
            // The operation in progress has a run whose removal is prepared, and more memory that is
            // offline already.
            assert!(memory.bind(second, &mut hooks).is_err());
            assert_eq!(counts([first, second]), before);
            let mut bound = memory.bind(first, &mut hooks).unwrap();
            if succeeds {
                bound.unplugged(prepared)
            } else {
                bound.unplug_refused(prepared)
            }
            bound.cancel();
        }
        let counts = first.frames().counts();
        let expected = (initial.present - UNIT, initial.online - UNIT);
        assert_eq!((counts.present, counts.online), expected);
    });
}
