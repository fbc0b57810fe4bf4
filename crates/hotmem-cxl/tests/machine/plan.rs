//! Tests of the planner against a naive decoder of addresses, which reads the registers that the plan
//! has written; of plans that fail while they are carried out; and of impossible plans.

use crate::arbitrary::{Arbitrary, arbitrary};
use crate::host::{Host, START, index, window};
use hotmem_addr::{Bytes, PfnRange};
use hotmem_cxl::cedt::{self, Restrictions};
use hotmem_cxl::command::Extent;
use hotmem_cxl::plan::{
    Bridge, Component, Device, Execution, Machine, Plan, PlanError, PlanFailure, Wish,
};
use hotmem_cxl::{DecoderError, Decoders, Granularity, UNIT};
use proptest::prelude::*;
use std::{task::Poll, time::Duration};

fn wish(units: u64, granularity: u8) -> Wish {
    let granularity = Granularity::from_encoding(granularity).unwrap();
    Wish { len: Bytes(units * UNIT), granularity, kind: Restrictions::VOLATILE }
}

/// Checks that the addresses of the plan and the memory of its devices correspond one to one, as the
/// registers route them. Examines all turns of the first addresses, and `others`.
fn check(host: &Host, plan: &Plan, others: &[u64]) {
    let (start, len) = (plan.range().start().phys_addr(), plan.range().bytes().0);
    let first = (0..0x8_0000).step_by(128).map(|offset| (offset / 128 * 131) % 0x8_0000);
    let edges = [len - 1, len - 256, len / 2];
    for offset in first.chain(edges).chain(others.iter().map(|other| other % len)) {
        let address = start + offset;
        let place = host.route(address);
        assert_eq!(plan.locate(address), place, "of {address:#x}");
        let (device, at) = place.expect("each address of the plan is routed");
        assert!(host.memory.contains(&at));
        assert_eq!(plan.address(device, at), Some(address), "of {at:#x} in device {device}");
    }
    let devices = host.devices.len();
    let lowest: Vec<u64> = (0..devices).map(|device| plan_start(plan, device)).collect();
    for (device, low) in lowest.iter().enumerate() {
        let each = len / devices as u64;
        assert_eq!(low.checked_sub(1).and_then(|below| plan.address(device, below)), None);
        assert_eq!(plan.address(device, low + each), None);
        for offset in [0, each - 1].into_iter().chain(others.iter().map(|other| other % each)) {
            let address = plan.address(device, low + offset).expect("all of the memory is routed");
            assert_eq!(host.route(address), Some((device, low + offset)));
        }
    }
    assert_eq!(plan.locate(start - 1), None);
    assert_eq!(plan.locate(start + len), None);
}

/// Returns the lowest address in the device.
fn plan_start(plan: &Plan, device: usize) -> u64 {
    let start = plan.range().start().phys_addr();
    let first = (0..0x8_0000).step_by(256).filter_map(|offset| plan.locate(start + offset));
    first.filter(|&(member, _)| member == device).map(|(_, at)| at).min().unwrap()
}

#[test]
fn one_two_and_four_devices_below_one_and_two_bridges_are_routed() {
    for (bridges, ports) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)] {
        for granularity in 0..=6 {
            let mut host = Host::new(bridges, ports, granularity);
            let plan = host.plan(wish(2, granularity));
            if (bridges, granularity) == (4, 6) {
                assert_eq!(plan, Err(PlanError::Interleave), "bit 15 cannot select");
                continue;
            }
            let plan = plan.unwrap();
            assert_eq!(plan.steps().count(), bridges as usize * (1 + usize::from(ports)));
            assert_eq!(host.run(Execution::commit(&plan)), Ok(()));
            check(&host, &plan, &[]);
            assert_eq!(host.run(Execution::uncommit(&plan)), Ok(()));
            assert_eq!(host.count_committed(), 0);
            assert_eq!(host.route(START), None);
        }
    }
}

#[test]
fn a_bridge_without_decoders_passes_addresses_to_its_only_device() {
    let mut host = Host::new(2, 1, 3);
    host.bridges[0].1 = None;
    host.bridges[1].1 = None;
    let plan = host.plan(wish(1, 0)).unwrap();
    assert_eq!(plan.steps().count(), 2);
    assert_eq!(host.run(Execution::commit(&plan)), Ok(()));
    check(&host, &plan, &[]);
    let mut host = Host::new(1, 2, 0);
    host.bridges[0].1 = None;
    assert_eq!(host.plan(wish(1, 0)), Err(PlanError::NoDecoders { uid: 12 }));
}

/// Whichever component fails, nothing stays committed, and a later attempt succeeds.
#[test]
fn a_plan_of_which_one_decoder_fails_is_undone() {
    for failing in 0..6 {
        let mut host = Host::new(2, 2, 0);
        let plan = host.plan(wish(1, 0)).unwrap();
        host.registers()[failing].behaviour.refuses = true;
        let component =
            if failing < 2 { Component::Bridge(failing) } else { Component::Device(failing - 2) };
        let failure =
            PlanFailure { component, error: DecoderError::Refused { n: 0 }, not_freed: 0 };
        assert_eq!(host.run(Execution::commit(&plan)), Err(failure));
        assert_eq!(host.count_committed(), 0);

        host.registers()[failing].behaviour.refuses = false;
        host.registers()[failing].behaviour.delay = 1000;
        let failure =
            PlanFailure { component, error: DecoderError::TimedOut { n: 0 }, not_freed: 1 };
        assert_eq!(host.run(Execution::commit(&plan)), Err(failure));
        assert_eq!(host.count_committed(), 0);

        host.registers()[failing].behaviour.delay = 0;
        host.removed.push(component);
        let failure = PlanFailure { component, error: DecoderError::Gone, not_freed: 0 };
        assert_eq!(host.run(Execution::commit(&plan)), Err(failure));
        assert_eq!(host.count_committed(), 0);

        host.removed.clear();
        assert_eq!(host.run(Execution::commit(&plan)), Ok(()));
        check(&host, &plan, &[]);
        // All others are freed, although one has gone.
        host.removed.push(component);
        assert_eq!(host.run(Execution::uncommit(&plan)), Err(failure));
        assert_eq!(host.count_committed(), 1);
    }
}

#[test]
fn an_extent_of_one_device_is_a_range() {
    let mut host = Host::new(1, 1, 0);
    host.memory = 2 * UNIT..16 * UNIT;
    let plan = host.plan(wish(2, 0)).unwrap();
    let extent = |start, len| Extent { start, len };
    let range = PfnRange::from_bytes(START + 4096, Bytes(UNIT)).unwrap();
    assert_eq!(plan.range_of(0, extent(2 * UNIT + 4096, UNIT)), Some(range));
    assert_eq!(plan.range_of(0, extent(2 * UNIT, 2 * UNIT)), Some(plan.range()));
    for bad in [
        extent(2 * UNIT - 4096, UNIT),
        extent(2 * UNIT + 4096, 2 * UNIT),
        extent(2 * UNIT, u64::MAX),
        extent(2 * UNIT + 1, 4096),
        extent(u64::MAX, 1),
    ] {
        assert_eq!(plan.range_of(0, bad), None, "{bad:x?}");
    }
    assert_eq!(plan.range_of(1, extent(2 * UNIT, UNIT)), None);
    let mut host = Host::new(1, 2, 0);
    let plan = host.plan(wish(1, 0)).unwrap();
    assert_eq!(plan.range_of(0, extent(0, 4096)), None, "addresses alternate");
}

/// Components whose registers were good when they were found.
struct Lying(Host, Arbitrary);

impl Machine for Lying {
    type Registers = Arbitrary;

    fn decoders(&mut self, component: Component) -> Option<(Decoders, &mut Arbitrary)> {
        Some((self.0.decoders(component)?.0, &mut self.1))
    }
}

#[test]
fn impossible_plans_are_refused() {
    type Change = fn(&mut Host);
    let error = |change: Change, wish: Wish| {
        let mut host = Host::new(2, 2, 0);
        change(&mut host);
        host.plan(wish).unwrap_err()
    };
    let good = wish(1, 0);
    let nothing: Change = |_| {};
    assert_eq!(error(nothing, wish(0, 0)), PlanError::Len(Bytes(0)));
    let odd = Wish { len: Bytes(4096), ..good };
    assert_eq!(error(nothing, odd), PlanError::Len(Bytes(4096)));
    let unknown = Wish { kind: Restrictions(1 << 15), ..good };
    assert_eq!(error(nothing, unknown), PlanError::Restrictions(Restrictions(0xf)));
    let fixed: Change = |host| host.window.restrictions = Restrictions(0x1f);
    assert_eq!(error(fixed, good), PlanError::Restrictions(Restrictions(0x1f)));
    let xor: Change = |host| host.window.arithmetic = cedt::Arithmetic::Xor;
    assert_eq!(error(xor, good), PlanError::WindowInterleave);
    let three: Change = |host| drop(host.devices.pop());
    assert_eq!(error(three, good), PlanError::Devices(3));
    let none: Change = |host| host.devices.clear();
    assert_eq!(error(none, good), PlanError::Devices(0));
    let one: Change = |host| host.devices.truncate(1);
    assert_eq!(error(one, good), PlanError::Uneven { uid: 12, found: 1, wanted: 0 });
    let uneven: Change = |host| host.devices[0].0 = 22;
    assert_eq!(error(uneven, good), PlanError::Uneven { uid: 12, found: 1, wanted: 2 });
    let outside: Change = |host| host.devices[1].0 = 99;
    assert_eq!(error(outside, good), PlanError::OutsideWindow { device: 1 });
    let unknown: Change = |host| drop(host.bridges.pop());
    assert_eq!(error(unknown, good), PlanError::UnknownBridge { uid: 22 });
    let twice: Change = |host| host.window = window(&[12, 12], 0, 8);
    assert_eq!(error(twice, good), PlanError::RepeatedTarget { uid: 12 });
    let shared: Change = |host| host.devices[2].1 = 1;
    assert_eq!(error(shared, good), PlanError::SharedPort { device: 2 });
    let full = PlanError::DeviceFull { device: 0, free: Bytes(16 * UNIT) };
    assert_eq!(
        error(nothing, wish(16 * 4 + 1, 0)),
        PlanError::WindowFull {
            window: window(&[12, 22], 0, 64).range,
            wanted: Bytes(4 * 65 * UNIT),
        }
    );
    let wide: Change = |host| host.window = window(&[12, 22], 0, 4096);
    assert_eq!(error(wide, wish(17, 0)), full);
    let no_bits: Change = |host| *host.devices[3].2.word(0x1200) &= !(1 << 8);
    assert_eq!(error(no_bits, good), PlanError::Interleave);
    let used: Change = |host| {
        for _ in 0..4 {
            let plan = host.plan(wish(1, 0)).unwrap();
            assert_eq!(host.run(Execution::commit(&plan)), Ok(()));
        }
    };
    assert_eq!(error(used, good), PlanError::NoFreeDecoder(Component::Device(0)));
}

/// A window with 16 KiB can only be divided among ports by bits below its own.
#[test]
fn ports_alternate_by_lower_bits_where_higher_ones_cannot_select() {
    let mut host = Host::new(2, 2, 6);
    let plan = host.plan(wish(1, 0)).unwrap();
    let granularities: Vec<_> = plan.steps().map(|step| step.setting.granularity).collect();
    assert_eq!(granularities, [Granularity::from_encoding(5).unwrap(); 6]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Several plans, one after the other, in a machine of any shape.
    #[test]
    fn each_address_goes_to_one_device_address_and_back(
        shape in prop_oneof![Just((1, 1)), Just((1, 2)), Just((1, 4)), Just((2, 1)), Just((2, 2)),
            Just((4, 1)), Just((4, 2)), Just((1, 8))],
        window_granularity in 0u8..7,
        order in any::<u64>(),
        sizes in proptest::collection::vec((1u64..4, 0u8..7), 1..4),
        start in 0u64..3 * UNIT,
        passes in any::<bool>(),
        others in proptest::collection::vec(any::<u64>(), 32),
    ) {
        let mut host = Host::new(shape.0, shape.1, window_granularity);
        host.window = window(host.window.targets().to_vec().as_slice(), window_granularity, 4096);
        host.memory.start = start;
        if passes && shape.1 == 1 {
            host.bridges[0].1 = None;
        }
        let count = host.devices.len();
        host.devices.rotate_left(index(order % count as u64));
        if order & 1 << 63 != 0 {
            host.devices.reverse();
        }
        let mut plans: Vec<Plan> = Vec::new();
        for (units, granularity) in sizes {
            match host.plan(wish(units, granularity)) {
                Ok(plan) => {
                    prop_assert_eq!(host.run(Execution::commit(&plan)), Ok(()));
                    plans.push(plan);
                }
                // Bits above 14 cannot select.
                Err(PlanError::Interleave) => continue,
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
        for (n, plan) in plans.iter().enumerate() {
            check(&host, plan, &others);
            prop_assert!(host.window.range.covers(plan.range()));
            prop_assert!(plans[..n].iter().all(|other| !other.range().overlaps(plan.range())));
        }
        for plan in plans.iter().rev() {
            prop_assert_eq!(host.run(Execution::uncommit(plan)), Ok(()));
            prop_assert_eq!(host.route(plan.range().start().phys_addr()), None);
        }
        prop_assert_eq!(host.count_committed(), 0);
    }

    /// Whatever the registers answer, an execution ends in time, and accesses nothing beyond them.
    #[test]
    fn an_execution_ends_whatever_registers_answer(registers in arbitrary(), frees: bool) {
        let mut host = Host::new(2, 2, 0);
        let plan = host.plan(wish(1, 0)).unwrap();
        let mut machine = Lying(host, registers);
        let mut execution =
            if frees { Execution::uncommit(&plan) } else { Execution::commit(&plan) };
        let ends = (0..200).any(|ms| {
            matches!(execution.poll(&mut machine, Duration::from_millis(ms)), Poll::Ready(_))
        });
        prop_assert!(ends);
    }

    /// Whatever bridges and devices are listed, a plan lies in the window and in the devices.
    #[test]
    fn arbitrary_lists_make_possible_plans_or_errors(
        uids in proptest::collection::vec(0u32..4, 0..5),
        places in proptest::collection::vec((0u32..4, 0u8..3, any::<u64>(), any::<u64>()), 0..9),
        len in prop_oneof![any::<u64>(), (0u64..1 << 40).prop_map(|units| units.wrapping_mul(UNIT))],
        end in 0u64..1 << 40,
    ) {
        let mut host = Host::new(1, 1, 0);
        let mut occupancy = host.devices()[0].decoders;
        occupancy.end = hotmem_addr::Pfn::new(end).unwrap();
        let bridges: Vec<_> =
            uids.iter().map(|&uid| Bridge { uid, decoders: Some(occupancy) }).collect();
        let devices: Vec<_> = places.iter().map(|&(bridge, port, start, end)| {
            let decoders = hotmem_cxl::Occupancy { memory_end: start.rotate_left(9), ..occupancy };
            Device { bridge, port, decoders, memory: start..end }
        }).collect();
        let kind = Restrictions::VOLATILE;
        let wish = Wish { len: Bytes(len), granularity: Granularity::MIN, kind };
        for targets in [&[0][..], &[0, 1], &[1, 2, 3, 0]] {
            let window = window(targets, 0, 1 << 20);
            if let Ok(plan) = Plan::new(&window, &bridges, &devices, wish) {
                prop_assert!(window.range.covers(plan.range()));
                let address = plan.range().end().phys_addr() - 1;
                let (device, at) = plan.locate(address).unwrap();
                prop_assert!(devices[device].memory.contains(&at));
                prop_assert_eq!(plan.address(device, at), Some(address));
                prop_assert_eq!(plan.address(device, u64::MAX), None);
            }
        }
    }
}

#[test]
fn the_range_of_a_plan_begins_after_decoders_in_use() {
    let mut host = Host::new(1, 1, 0);
    let plan = host.plan(wish(3, 0)).unwrap();
    assert_eq!(plan.range(), PfnRange::from_bytes(START, Bytes(3 * UNIT)).unwrap());
    assert_eq!(host.run(Execution::commit(&plan)), Ok(()));
    let plan = host.plan(wish(2, 0)).unwrap();
    assert_eq!(plan.range(), PfnRange::from_bytes(START + 3 * UNIT, Bytes(2 * UNIT)).unwrap());
    assert_eq!(plan.locate(START + 3 * UNIT), Some((0, 3 * UNIT)));
}
