//! Runs `page_fault1` on the CPUs of the reference guest.

use super::super::subject::Subject;
use super::{BurstCosts, NODES, Plan, WORKING_SET};
use crate::qemu::{Accel, Balloon, Config, Event, Vm};
use anyhow::Result;
use hotmem::Bytes;
use hotmem_time_limit::scaled;
use std::{path::Path, time::Duration};

/// The time limit of a guest on an idle host for everything but the bursts and the rests, whose time is added.
const BASE_TIME_LIMIT: Duration = Duration::from_secs(60);

/// What a guest's clock counts.
#[derive(Clone, Copy)]
pub(in super::super) enum Clock {
    /// A nanosecond of the guest's clock is a nanosecond.
    Time(Accel),
    /// A nanosecond of the guest's clock is one instruction.
    Instructions,
}

/// Boots a guest, and measures the plan on its CPUs.
pub(in super::super) fn measure(
    subject: Subject,
    plan: Plan,
    image: &Path,
    clock: Clock,
) -> Result<BurstCosts> {
    let mut vm = Vm::start(&config(subject, plan, image, clock))?;
    let burst_costs = |event: &Event| match *event {
        Event::Faulted { cpus, frames, us, reported, refaulted } => Some(BurstCosts {
            frames,
            burst_time: Duration::from_micros(us),
            threads: u16::try_from(cpus).unwrap_or(u16::MAX),
            reported: Bytes(reported),
            refaulted: Bytes(refaulted),
        }),
        _ => None,
    };
    let (costs, _) = vm.wait("end of the bursts", burst_costs)?;
    vm.finish()?;
    costs.check(subject, plan)?;
    Ok(costs)
}

/// Returns the configuration of a guest with a CPU for each thread, and a CPU that drives the
/// balloon.
fn config(subject: Subject, plan: Plan, image: &Path, clock: Clock) -> Config {
    let (accel, icount) = match clock {
        Clock::Time(accel) => (accel, false),
        Clock::Instructions => (Accel::Tcg, true),
    };
    let Plan { threads, rounds, bursts, rest_time } = plan;
    let faults = format!("{}:{rounds}:{bursts}:{}", WORKING_SET.0, rest_time.as_millis());
    let reports = if subject == Subject::Hotmem { "on" } else { "off" };
    let config = Config::new(image.into(), Bytes::ZERO).with_guest_option("faults", faults);
    Config {
        boot_memory: Bytes(NODES * plan.node_size().0),
        nodes: vec![plan.node_size(); usize::try_from(NODES).unwrap_or(0)],
        balloon: Balloon::Reports,
        cpus: u32::from(threads) + 1,
        accel,
        icount,
        patience: scaled(
            BASE_TIME_LIMIT + (rest_time + Duration::from_secs(rounds.into())) * (bursts + 2),
        ),
        ..config.with_guest_option("reports", reports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_a_cpu_for_each_thread_and_subjects_differ_only_in_reporting() {
        let plan = Plan { threads: 3, rounds: 2, bursts: 5, rest_time: Duration::from_millis(700) };
        let config_of =
            |subject| config(subject, plan, Path::new("guest"), Clock::Time(Accel::Tcg));
        let (on, off) = (config_of(Subject::Hotmem), config_of(Subject::NoReporting));
        assert_eq!(on.append, ["hotmem.faults=134217728:2:5:700", "hotmem.reports=on"]);
        assert_eq!(off.append, ["hotmem.faults=134217728:2:5:700", "hotmem.reports=off"]);
        assert_eq!((on.cpus, on.nodes.len(), on.balloon), (4, 2, off.balloon));
        assert!(on.boot_memory.0 > 3 * WORKING_SET.0);
    }
}
