//! Tests of HDM decoders, which commit, refuse, lose bits, hang, or disappear.

use crate::arbitrary::arbitrary;
use crate::component::{COMMITTED, Component};
use hotmem_addr::{Bytes, PfnRange};
use hotmem_cxl::{
    COMMIT_LIMIT, DecoderError, DecoderState, Decoders, Destination, Granularity, Registers, Role,
    Setting, Transition, UNIT, Ways,
};
use proptest::prelude::*;
use std::{task::Poll, time::Duration};

fn setting(start: u64, units: u64) -> Setting {
    Setting {
        range: PfnRange::from_bytes(start * UNIT, Bytes(units * UNIT)).unwrap(),
        ways: Ways::ONE,
        granularity: Granularity::MIN,
        destination: Destination::Memory { skip: 0 },
    }
}

/// Polls until the transition is ready. Each poll takes a millisecond.
fn finish(
    begun: Result<Transition, DecoderError>,
    registers: &mut impl Registers,
) -> Result<(), DecoderError> {
    let mut transition = begun?;
    for ms in 0.. {
        if let Poll::Ready(result) = transition.poll(registers, Duration::from_millis(ms)) {
            return result;
        }
        assert!(Duration::from_millis(ms) <= COMMIT_LIMIT);
    }
    unreachable!("the loop has no end")
}

fn commit(component: &mut Component, n: u32, setting: &Setting) -> Result<(), DecoderError> {
    let decoders = Decoders::find(component, Role::Device)?.unwrap();
    let begun = decoders.commit(component, n, setting, Duration::ZERO);
    finish(begun, component)
}

fn uncommit(component: &mut Component, n: u32) -> Result<(), DecoderError> {
    let decoders = Decoders::find(component, Role::Device)?.unwrap();
    let begun = decoders.uncommit(component, n, Duration::ZERO);
    finish(begun, component)
}

#[test]
fn decoders_are_committed_read_and_freed_in_order() {
    let mut component = Component::new(1, 0);
    let decoders = Decoders::find(&mut component, Role::Device).unwrap().unwrap();
    assert_eq!(decoders.capability().count, 2);
    let (first, second) = (setting(16, 2), setting(18, 1));
    assert_eq!(commit(&mut component, 1, &second), Err(DecoderError::Order { other: 0 }));
    assert_eq!(commit(&mut component, 0, &first), Ok(()));
    assert_eq!(commit(&mut component, 0, &first), Err(DecoderError::Committed { n: 0 }));
    let not_ascending =
        DecoderError::NotAscending { range: setting(17, 1).range, before: first.range };
    assert_eq!(commit(&mut component, 1, &setting(17, 1)), Err(not_ascending));
    assert_eq!(commit(&mut component, 1, &second), Ok(()));
    let number = DecoderError::Number { n: 2, count: 2 };
    assert_eq!(commit(&mut component, 2, &setting(19, 1)), Err(number));
    let committed = DecoderState::Committed { setting: second, locked: false };
    assert_eq!(decoders.state(&mut component, 1), Ok(committed));
    assert_eq!(component.committed(0), Some([16 * UNIT, 2 * UNIT, 0x1600, 0]));

    assert_eq!(uncommit(&mut component, 0), Err(DecoderError::Order { other: 1 }));
    assert_eq!(uncommit(&mut component, 1), Ok(()));
    assert_eq!(uncommit(&mut component, 1), Err(DecoderError::Free { n: 1 }));
    *component.control(0) |= 1 << 8;
    assert_eq!(uncommit(&mut component, 0), Err(DecoderError::Locked { n: 0 }));
    *component.control(0) &= !(1 << 8);
    assert_eq!(uncommit(&mut component, 0), Ok(()));
    assert_eq!(decoders.state(&mut component, 0), Ok(DecoderState::Free));
    assert_eq!(component.count_committed(), 0);
}

#[test]
fn decoders_that_do_not_commit_are_reported_and_stay_free() {
    let mut refusing = Component::new(0, 0);
    refusing.behaviour.refuses = true;
    assert_eq!(commit(&mut refusing, 0, &setting(16, 1)), Err(DecoderError::Refused { n: 0 }));
    let mut hanging = Component::new(0, 0);
    hanging.behaviour.delay = 1000;
    assert_eq!(commit(&mut hanging, 0, &setting(16, 1)), Err(DecoderError::TimedOut { n: 0 }));
    for mut component in [refusing, hanging] {
        assert_eq!(*component.control(0) & (COMMITTED | 1 << 9), 0);
        component.behaviour.refuses = false;
        component.behaviour.delay = 3;
        assert_eq!(commit(&mut component, 0, &setting(16, 1)), Ok(()), "a later attempt succeeds");
        component.behaviour.delay = 1000;
        assert_eq!(uncommit(&mut component, 0), Err(DecoderError::TimedOut { n: 0 }));
    }
}

#[test]
fn registers_that_lose_bits_are_noticed_before_the_commit() {
    let mut component = Component::new(0, 0);
    component.behaviour.lost_bits = 1 << 28;
    let error = commit(&mut component, 0, &setting(17, 1)).unwrap_err();
    let altered = DecoderError::Altered { offset: 0x1210, wrote: 0x1000_0000, read: 0 };
    assert_eq!(error, altered);
    assert_eq!(component.count_committed(), 0);
}

#[test]
fn an_access_to_a_removed_component_fails_as_gone() {
    let run = |gone_after| {
        let mut component = Component::new(0, 0);
        component.behaviour.gone_after = gone_after;
        let result = commit(&mut component, 0, &setting(16, 1));
        let result = result.and_then(|()| uncommit(&mut component, 0));
        (result, component.accesses)
    };
    let (result, accesses) = run(None);
    assert_eq!(result, Ok(()));
    // The last six accesses clear registers of a decoder that is free.
    for after in 0..accesses - 6 {
        assert_eq!(run(Some(after)).0, Err(DecoderError::Gone), "after {after} accesses");
    }
}

#[test]
fn impossible_settings_are_refused() {
    let mut component = Component::new(0, 2);
    let two = Ways::new(2).unwrap();
    let good = setting(16, 2);
    let unaligned = PfnRange::from_bytes(16 * UNIT, Bytes(UNIT + 4096)).unwrap();
    let interleave = |ways, granularity| DecoderError::Interleave { ways, granularity };
    let ports = Destination::Ports([0; 8]);
    let cases = [
        (Setting { range: unaligned, ..good }, DecoderError::Unaligned(unaligned)),
        (Setting { range: PfnRange::EMPTY, ..good }, DecoderError::Unaligned(PfnRange::EMPTY)),
        (Setting { ways: two, ..setting(16, 1) }, DecoderError::Unaligned(setting(16, 1).range)),
        (Setting { destination: ports, ..good }, DecoderError::Role),
        (
            Setting { ways: Ways::new(3).unwrap(), ..setting(16, 3) },
            interleave(Ways::new(3).unwrap(), Granularity::MIN),
        ),
    ];
    for (setting, error) in cases {
        assert_eq!(commit(&mut component, 0, &setting), Err(error));
    }
    let widest = Setting { ways: two, granularity: Granularity::MAX, ..good };
    assert_eq!(commit(&mut component, 0, &widest), Ok(()), "address bit 14 can select the target");
    assert_eq!(uncommit(&mut component, 0), Ok(()));
    *component.word(0x1200) &= !(1 << 9);
    let error = interleave(two, Granularity::MAX);
    assert_eq!(
        commit(&mut component, 0, &widest),
        Err(error),
        "address bit 14 cannot select the target any more"
    );
    let bridge = Decoders::find(&mut component, Role::Bridge).unwrap().unwrap();
    let four = Setting { ways: Ways::new(4).unwrap(), destination: ports, ..setting(16, 4) };
    let error = interleave(four.ways, Granularity::MIN);
    assert_eq!(bridge.commit(&mut component, 0, &four, Duration::ZERO), Err(error));
}

#[test]
fn malformed_component_registers_are_refused() {
    let find = |offset, value| {
        let mut component = Component::new(0, 0);
        *component.word(offset) = value;
        Decoders::find(&mut component, Role::Bridge)
    };
    assert_eq!(find(0x1000, u32::MAX), Err(DecoderError::Gone));
    assert_eq!(find(0x1000, 0x0200_0002), Err(DecoderError::Header(0x0200_0002)));
    assert_eq!(find(0x1000, 0x0100_0001), Ok(None), "a bridge with one port has no decoders");
    assert_eq!(find(0x1200, 0xd), Err(DecoderError::Count(0xd)));
    for (control, reserved) in [(0x450, true), (0x407, true), (0x466, true), (0x416, false)] {
        let mut component = Component::new(0, 0);
        let decoders = Decoders::find(&mut component, Role::Device).unwrap().unwrap();
        *component.control(0) = control;
        let expected = DecoderError::Encoding { n: 0, control };
        assert_eq!(decoders.state(&mut component, 0).err(), reserved.then_some(expected));
    }
}

proptest! {
    /// Whatever the registers answer, no access is unaligned or beyond the block, and the number
    /// of accesses is bounded.
    #[test]
    fn arbitrary_registers_neither_panic_nor_lead_beyond_the_block(
        mut registers in arbitrary(), is_bridge: bool,
    ) {
        let role = if is_bridge { Role::Bridge } else { Role::Device };
        let destination =
            if is_bridge { Destination::Ports([0; 8]) } else { Destination::Memory { skip: 0 } };
        if let Ok(Some(decoders)) = Decoders::find(&mut registers, role) {
            prop_assert!((1..=32).contains(&decoders.capability().count));
            for n in 0..33 {
                let _ = decoders.state(&mut registers, n);
                let setting = Setting { destination, ..setting(16, 1) };
                let begun = decoders.commit(&mut registers, n, &setting, Duration::ZERO);
                let _ = finish(begun, &mut registers);
                let begun = decoders.uncommit(&mut registers, n, Duration::ZERO);
                let _ = finish(begun, &mut registers);
            }
        }
        prop_assert!(registers.accesses < 300 + 33 * 100);
    }
}
