//! `hotmem vm --arch pseries`, which adds and removes DIMMs and measures the time of each step.

use super::rows::{Row, StepTime};
use crate::pseries::{Config, Dimm, SLOTS};
use crate::qemu::{Error, Event, HostEvent, Resize, Vm, image};
use anyhow::{Result, bail};
use hotmem::Bytes;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// The size of an LMB in all versions of QEMU.
const LMB: Bytes = Bytes::mib(256);
/// The minimal size of a DIMM, except of the last one.
const MIN_DIMM: Bytes = Bytes::gib(4);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The path of the guest's image. If this is `None`, the image is built from the workspace.
    pub(super) image: Option<PathBuf>,
    /// The boot memory.
    pub(super) boot_memory: Bytes,
    /// The size of the memory to plug.
    pub(super) plug: Bytes,
    /// The size that the guest fills with patterns in all, divided equally among the DIMMs.
    pub(super) touch: Option<Bytes>,
    /// The online type of plugged memory, as on the guest's command line.
    pub(super) online: &'static str,
    /// The number of steps. The first step plugs the memory, the second unplugs it, and so on.
    pub(super) steps: u32,
    /// Whether an instruction takes a nanosecond of the guest's time.
    pub(super) icount: bool,
}

impl Plan {
    /// Returns the DIMMs to plug. Each has 4 GiB, or more if there are too few slots for DIMMs of
    /// 4 GiB. The last DIMM has the remaining memory.
    fn dimms(&self) -> Vec<Dimm> {
        let min_by_slots = Bytes(self.plug.0.div_ceil(u64::from(SLOTS)).next_multiple_of(LMB.0));
        let dimm_size = min_by_slots.max(MIN_DIMM);
        let mut left = self.plug;
        let mut dimms = Vec::new();
        while left != Bytes::ZERO {
            let size = left.min(dimm_size);
            dimms.push(Dimm::new(format!("dimm{}", dimms.len()), size));
            left = Bytes(left.0 - size.0);
        }
        dimms
    }
}

/// Boots the guest and changes its memory. Calls `begin_step` at the start of each step. Returns
/// the time until the guest was ready, and the rows of all steps.
///
/// # Errors
/// [`Error`], or the size to plug is not a multiple of an LMB.
pub(super) fn run(plan: &Plan, mut begin_step: impl FnMut(&str)) -> Result<(Duration, Vec<Row>)> {
    if plan.plug == Bytes::ZERO || !plan.plug.0.is_multiple_of(LMB.0) {
        bail!("--plug {}: the size must be whole LMBs of {LMB}", plan.plug);
    }
    let dimms = plan.dimms();
    // The guest ends after this many requests: one for each DIMM in each step.
    let requests = dimms.len() * plan.steps as usize;
    let kernel = image::find_pseries(plan.image.as_deref())?;
    let config = Config::new(kernel, plan.boot_memory + plan.plug + Bytes::gib(1))
        .with_guest_option("exit", requests)
        .with_guest_option("online", plan.online);
    let config = Config { boot_memory: plan.boot_memory, icount: plan.icount, ..config };
    let config = match plan.touch {
        Some(touch) => {
            let bytes_per_dimm = touch.0 / dimms.len() as u64;
            config.with_guest_option("touch", bytes_per_dimm)
        }
        None => config,
    };
    begin_step("booting");
    let mut vm = Vm::start(&config)?;
    let ready = vm.wait("kernel", |event| matches!(event, Event::Ready { .. }).then_some(()))?.1;
    let mut rows = Vec::new();
    for (nth, step) in (0..plan.steps).zip(["plug", "unplug", "plug again"]) {
        begin_step(&format!("{step} {}", plan.plug));
        let result = if nth % 2 == 0 {
            add(&mut vm, &dimms, plan.touch.is_some())?
        } else {
            remove(&mut vm, &dimms)?
        };
        rows.push(Row { step, memory: plan.plug, time: StepTime::Resize(result.resize) });
        if let Some((bytes, time)) = result.touched_memory {
            rows.push(Row { step: "touch", memory: bytes, time: StepTime::InGuest(time) });
        }
    }
    vm.finish()?;
    Ok((ready, rows))
}

/// The result of adding or removing all DIMMs.
struct StepResult {
    resize: Resize,
    /// The size that the guest filled with patterns, and the time.
    touched_memory: Option<(Bytes, Duration)>,
}

/// Adds the DIMMs. If `touches`, waits after each of them until the guest has filled memory.
fn add(vm: &mut Vm, dimms: &[Dimm], touches: bool) -> Result<StepResult, Error> {
    let mut total = DimmTimes::default();
    let mut touched = (Bytes::ZERO, Duration::ZERO);
    for dimm in dimms {
        let start = Instant::now();
        vm.add(dimm)?;
        let device_done = start.elapsed();
        let end = vm.request_end(&format!("end of the addition of {}", dimm.id))?;
        if let Some(reason) = end.reason {
            return Err(Error::Failed(Some(format!("{} was not added: {reason}", dimm.id))));
        }
        total.add_dimm(device_done, start.elapsed(), end.ns, end.online);
        if touches {
            let (bytes, time) = vm
                .wait("end of the touching", |event| match *event {
                    Event::Touched { bytes, time } => Some((Bytes(bytes), time.into())),
                    _ => None,
                })?
                .0;
            touched = (touched.0 + bytes, touched.1 + time);
        }
    }
    Ok(StepResult { resize: total.resize(), touched_memory: touches.then_some(touched) })
}

fn remove(vm: &mut Vm, dimms: &[Dimm]) -> Result<StepResult, Error> {
    let mut total = DimmTimes::default();
    for dimm in dimms {
        let start = Instant::now();
        let removal = vm.unplug(&dimm.id)?;
        let time = start.elapsed();
        if let HostEvent::Refused(id) = removal.host {
            let reason = removal.end.reason.unwrap_or_default();
            return Err(Error::Failed(Some(format!("{id} was not removed: {reason}"))));
        }
        total.add_dimm(time, time, removal.end.ns, removal.end.online);
    }
    Ok(StepResult { resize: total.resize(), touched_memory: None })
}

/// The sum of the times of all DIMMs in a step.
#[derive(Default)]
struct DimmTimes {
    device_done: Duration,
    recognised: Duration,
    in_guest: Duration,
    requests: u64,
    online: Bytes,
}

impl DimmTimes {
    fn add_dimm(&mut self, device_done: Duration, recognised: Duration, ns: u64, online: u64) {
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
    fn a_size_is_divided_among_at_most_32_dimms() {
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
