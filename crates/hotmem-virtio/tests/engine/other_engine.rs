//! Tests that an operation of a device on one engine cannot continue on another engine.

use crate::machine::{Engine, GIB, MIB, Machine, REGION};
use hotmem::{Budget, Bytes, Counts, NoHooks, OneCpu, OnlineType, PfnRange};
use hotmem_testkit::Validated as _;
use hotmem_virtio::mem::{HotplugMemory, Memory, Unplug};

const UNIT: u64 = 512;

fn region() -> PfnRange {
    PfnRange::from_bytes(REGION, Bytes(GIB)).unwrap()
}

fn part() -> PfnRange {
    PfnRange::from_bytes(REGION, Bytes(256 * MIB)).unwrap()
}

/// Boots two machines, announces the region on both, and runs `test` with a device of the first
/// machine.
fn with_two_machines(
    test: impl for<'f> FnOnce(&mut HotplugMemory<'f, OneCpu>, &mut Engine<'f>, &mut Engine<'f>),
) {
    let machines = [Machine::new(), Machine::new()];
    let [mut own, mut other] = [0, 1].map(|nth| machines[nth].boot());
    own.announce(region()).unwrap();
    other.announce(region()).unwrap();
    let mut memory = HotplugMemory::new(OnlineType::Movable, Budget::UNLIMITED);
    test(&mut memory, &mut own, &mut other);
}

fn counts(machines: [&Engine<'_>; 2]) -> [Counts; 2] {
    machines.map(|machine| machine.frames().validated().unwrap())
}

#[test]
fn a_plug_does_not_continue_on_another_engine() {
    with_two_machines(|memory, own, other| {
        let prepared = memory.bind(own, &mut NoHooks).unwrap().prepare_plug(part(), UNIT);
        assert_eq!(prepared, Ok(part()));
        let before = counts([own, other]);
        assert!(memory.bind(other, &mut NoHooks).is_err());
        assert_eq!(counts([own, other]), before);
        let mut hooks = NoHooks;
        let mut here = memory.bind(own, &mut hooks).unwrap();
        here.plugged(part());
        assert_eq!(here.bring_online(), Ok(()));
        drop(here);
        assert_eq!(own.frames().counts().movable, part().frames());
    });
}

#[test]
fn an_unplug_does_not_continue_on_another_engine() {
    with_two_machines(|memory, own, other| {
        for machine in [&mut *own, &mut *other] {
            machine.add(part()).unwrap();
            machine.online(part(), OnlineType::Movable, &mut NoHooks).unwrap();
        }
        let all = own.frames().counts();
        let mut hooks = NoHooks;
        let total = part().frames();
        let wanted = Unplug { region: region(), total, max_frames: UNIT, unit: UNIT };
        for taken in [true, false] {
            let prepared = memory.bind(own, &mut NoHooks).unwrap().prepare_unplug(wanted).unwrap();
            let before = counts([own, other]);
            // The operation in progress has a run whose removal is prepared, and more memory that is
            // offline already.
            assert!(memory.bind(other, &mut hooks).is_err());
            assert_eq!(counts([own, other]), before);
            let mut here = memory.bind(own, &mut hooks).unwrap();
            if taken {
                here.unplugged(prepared)
            } else {
                here.unplug_refused(prepared)
            }
            here.cancel();
        }
        let counts = own.frames().counts();
        assert_eq!((counts.present, counts.online), (all.present - UNIT, all.online - UNIT));
    });
}
