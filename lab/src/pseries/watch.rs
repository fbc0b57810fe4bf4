//! `hotmem vm --arch pseries`: adds and removes DIMMs, and measures each step.

use super::{Config, Dimm, Event, HostEvent, Vm, config::SLOTS};
use crate::qemu::{Error, Resize, image};
use crate::vm::rows::{Row, Took};
use anyhow::{Result, bail};
use hotmem::Bytes;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// The size of an LMB, which is the same in all versions of QEMU.
pub const LMB: Bytes = Bytes::mib(256);
/// The size of a DIMM, unless there are too few slots.
const DIMM: Bytes = Bytes::gib(4);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The guest's image; built from the workspace if not given.
    pub image: Option<PathBuf>,
    /// Memory at boot.
    pub boot_memory: Bytes,
    /// Memory that is added.
    pub plug: Bytes,
    /// The size that the guest fills with patterns after each DIMM.
    pub touch: Option<Bytes>,
    /// The online type of added memory, as on the guest's command line.
    pub online: &'static str,
    /// The number of steps: alternately additions and removals.
    pub steps: u32,
    /// Whether instructions are counted.
    pub icount: bool,
}

impl Plan {
    /// Returns the DIMMs. They have 4 GiB, or more if there are too few slots; the last one holds
    /// the rest.
    fn dimms(&self) -> Vec<Dimm> {
        let least = Bytes(self.plug.0.div_ceil(u64::from(SLOTS)).next_multiple_of(LMB.0));
        let each = least.max(DIMM);
        let mut left = self.plug;
        let mut dimms = Vec::new();
        while left != Bytes::ZERO {
            let size = left.min(each);
            dimms.push(Dimm::new(format!("dimm{}", dimms.len()), size));
            left = Bytes(left.0 - size.0);
        }
        dimms
    }
}

/// Boots the guest and changes its memory. Returns the time until the guest was ready, and a row
/// for each step.
///
/// # Errors
/// [`Error`], and if the plan's memory is not a multiple of an LMB.
pub fn run(plan: &Plan, mut step_begins: impl FnMut(&str)) -> Result<(Duration, Vec<Row>)> {
    if plan.plug == Bytes::ZERO || !plan.plug.0.is_multiple_of(LMB.0) {
        bail!("--plug {}: plugs whole LMBs of {LMB}", plan.plug);
    }
    let dimms = plan.dimms();
    // Each step has an event for each DIMM.
    let events = dimms.len() * plan.steps as usize;
    let kernel = image::find_pseries(plan.image.as_deref())?;
    let config = Config::new(kernel, plan.boot_memory + plan.plug + Bytes::gib(1))
        .with("exit", events)
        .with("online", plan.online);
    let config = Config { boot_memory: plan.boot_memory, icount: plan.icount, ..config };
    let config = match plan.touch {
        Some(touch) => {
            let each = touch.0 / dimms.len() as u64;
            config.with("touch", each)
        }
        None => config,
    };
    step_begins("booting");
    let mut vm = Vm::start(&config)?;
    let ready = vm.wait("kernel", |event| matches!(event, Event::Ready { .. }).then_some(()))?.1;
    let mut rows = Vec::new();
    for (nth, step) in (0..plan.steps).zip(["plug", "unplug", "plug again"]) {
        step_begins(&format!("{step} {}", plan.plug));
        let took = if nth % 2 == 0 {
            add(&mut vm, &dimms, plan.touch.is_some())?
        } else {
            remove(&mut vm, &dimms)?
        };
        rows.push(Row { step, memory: plan.plug, took: Took::Resize(took.resize) });
        if let Some((bytes, time)) = took.touched {
            rows.push(Row { step: "touch", memory: bytes, took: Took::InGuest(time) });
        }
    }
    vm.finish()?;
    Ok((ready, rows))
}

struct Step {
    resize: Resize,
    touched: Option<(Bytes, Duration)>,
}

fn add(vm: &mut Vm, dimms: &[Dimm], touched: bool) -> Result<Step, Error> {
    let mut sum = Sum::default();
    let mut all = (Bytes::ZERO, Duration::ZERO);
    for dimm in dimms {
        let start = Instant::now();
        vm.add(dimm)?;
        let device_done = start.elapsed();
        let done = vm.done(&format!("end of the addition of {}", dimm.id))?;
        if let Some(why) = done.why {
            return Err(Error::Failed(Some(format!("{} was not added: {why}", dimm.id))));
        }
        sum.count(device_done, start.elapsed(), done.ns, done.online);
        if touched {
            let (bytes, time) = vm
                .wait("end of the touching", |event| match *event {
                    Event::Touched { bytes, ns } => Some((Bytes(bytes), Duration::from_nanos(ns))),
                    _ => None,
                })?
                .0;
            all = (all.0 + bytes, all.1 + time);
        }
    }
    Ok(Step { resize: sum.resize(), touched: touched.then_some(all) })
}

fn remove(vm: &mut Vm, dimms: &[Dimm]) -> Result<Step, Error> {
    let mut sum = Sum::default();
    for dimm in dimms {
        let start = Instant::now();
        let removal = vm.unplug(&dimm.id)?;
        let took = start.elapsed();
        if let HostEvent::Refused(id) = removal.host {
            let why = removal.done.why.unwrap_or_default();
            return Err(Error::Failed(Some(format!("{id} was not removed: {why}"))));
        }
        sum.count(took, took, removal.done.ns, removal.done.online);
    }
    Ok(Step { resize: sum.resize(), touched: None })
}

/// DIMMs one after another.
#[derive(Default)]
struct Sum {
    device_done: Duration,
    recognised: Duration,
    in_guest: Duration,
    requests: u64,
    online: Bytes,
}

impl Sum {
    fn count(&mut self, device_done: Duration, recognised: Duration, ns: u64, online: u64) {
        self.device_done += device_done;
        self.recognised += recognised;
        self.in_guest += Duration::from_nanos(ns);
        self.requests += 1;
        self.online = Bytes(online);
    }

    fn resize(self) -> Resize {
        Resize {
            device_done: self.device_done,
            recognised: self.recognised,
            in_guest: self.in_guest,
            requests: self.requests,
            online: self.online,
            node: 0,
            node_online: self.online,
            interrupted: false,
            zone: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided_among_the_slots() {
        let sizes = |plug| {
            let plan = Plan {
                image: None,
                boot_memory: Bytes::gib(1),
                plug,
                touch: None,
                online: "movable",
                steps: 1,
                icount: false,
            };
            plan.dimms().iter().map(|dimm| dimm.size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(Bytes::mib(256)), [Bytes::mib(256)]);
        assert_eq!(sizes(Bytes::gib(9)), [Bytes::gib(4), Bytes::gib(4), Bytes::gib(1)]);
        assert_eq!(sizes(Bytes::gib(256)), [Bytes::gib(8); 32]);
        assert!(sizes(Bytes(Bytes::gib(256).0 + LMB.0)).len() <= 32);
    }
}
