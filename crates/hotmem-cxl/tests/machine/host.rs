//! Simulates bridges and devices, and follows addresses through their registers.

use crate::component::Component as Simulated;
use hotmem_cxl::cedt::{self, Structure, Window};
use hotmem_cxl::plan::{
    Bridge, Component, Device, Execution, Machine, Plan, PlanError, PlanFailure, Wish,
};
use hotmem_cxl::{Decoders, Role, UNIT, Ways};
use std::{ops::Range, task::Poll, time::Duration};

/// A window, its bridges, and the devices below each.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) window: Window,
    /// Without decoders: a bridge that passes addresses to its only port.
    pub(crate) bridges: Vec<(u32, Option<Simulated>)>,
    pub(crate) devices: Vec<(u32, u8, Simulated)>,
    pub(crate) memory: Range<u64>,
    /// Components that have been removed.
    pub(crate) removed: Vec<Component>,
}

pub(crate) const START: u64 = 64 * UNIT;

pub(crate) fn window(targets: &[u32], granularity: u8, units: u64) -> Window {
    let ways = Ways::new(targets.len()).unwrap().encoding();
    let mut raw = vec![1, 0, u8::try_from(36 + 4 * targets.len()).unwrap(), 0, 0, 0, 0, 0];
    raw.extend([START, units * UNIT].map(u64::to_le_bytes).concat());
    raw.extend([ways, 0, 0, 0, granularity, 0, 0, 0, 0xf, 0, 0, 0]);
    raw.extend(targets.iter().flat_map(|target| target.to_le_bytes()));
    match cedt::structures(&raw).next() {
        Some(Ok(Structure::Window(window))) => window,
        other => panic!("{other:?}"),
    }
}

impl Host {
    /// `ports` devices below each of `count` bridges. Devices are listed port by port.
    pub(crate) fn new(count: u32, ports: u8, granularity: u8) -> Self {
        let uids: Vec<u32> = (0..count).map(|n| 12 + 10 * n).collect();
        let bridges = uids.iter().map(|&uid| (uid, Some(Simulated::bridge(2, 8)))).collect();
        let devices = (0..ports)
            .flat_map(|port| uids.iter().map(move |&uid| (uid, 7 * port + 1, Simulated::new(2, 0))))
            .collect();
        let window = window(&uids, granularity, 64);
        Host { window, bridges, devices, memory: 0..16 * UNIT, removed: Vec::new() }
    }

    pub(crate) fn bridges(&mut self) -> Vec<Bridge> {
        let each = self.bridges.iter_mut().map(|(uid, registers)| {
            let occupancy = registers.as_mut().map(|registers| {
                let decoders = Decoders::find(registers, Role::Bridge).unwrap().unwrap();
                decoders.occupancy(registers).unwrap()
            });
            Bridge { uid: *uid, decoders: occupancy }
        });
        each.collect()
    }

    pub(crate) fn devices(&mut self) -> Vec<Device> {
        let memory = self.memory.clone();
        let each = self.devices.iter_mut().map(|(bridge, port, registers)| {
            let decoders = Decoders::find(registers, Role::Device).unwrap().unwrap();
            let decoders = decoders.occupancy(registers).unwrap();
            Device { bridge: *bridge, port: *port, decoders, memory: memory.clone() }
        });
        each.collect()
    }

    pub(crate) fn plan(&mut self, wish: Wish) -> Result<Plan, PlanError> {
        let (bridges, devices) = (self.bridges(), self.devices());
        Plan::new(&self.window, &bridges, &devices, wish)
    }

    pub(crate) fn run(&mut self, mut execution: Execution<'_>) -> Result<(), PlanFailure> {
        for ms in 0..1000 {
            if let Poll::Ready(result) = execution.poll(self, Duration::from_millis(ms)) {
                return result;
            }
        }
        panic!("the execution has no end")
    }

    pub(crate) fn registers(&mut self) -> Vec<&mut Simulated> {
        let bridges = self.bridges.iter_mut().filter_map(|(_, registers)| registers.as_mut());
        bridges.chain(self.devices.iter_mut().map(|(_, _, registers)| registers)).collect()
    }

    pub(crate) fn count_committed(&mut self) -> usize {
        self.registers().iter().map(|registers| registers.count_committed()).sum()
    }

    /// Follows an address through the registers. Returns the device and the address in it.
    pub(crate) fn route(&self, address: u64) -> Option<(usize, u64)> {
        let range = self.window.range;
        if !(range.start().phys_addr()..range.end().phys_addr()).contains(&address) {
            return None;
        }
        let turn = address / self.window.granularity.bytes().0;
        let target = self.window.targets()[index(turn % self.window.ways.count() as u64)];
        let (_, bridge) = self.bridges.iter().find(|(uid, _)| *uid == target)?;
        let port = match bridge {
            None => self.devices.iter().find(|(uid, ..)| *uid == target)?.1,
            Some(bridge) => {
                let [_, _, control, ports] = decoder_of(bridge, address)?;
                let (ways, granularity) = interleave(control);
                ports.to_le_bytes()[index(address / granularity % ways)]
            }
        };
        let is_there = |(uid, at, _): &(u32, u8, Simulated)| *uid == target && *at == port;
        let device = self.devices.iter().position(is_there)?;
        let mut start = 0;
        for n in 0..4 {
            let Some([base, len, control, skip]) = self.devices[device].2.committed(n) else {
                break;
            };
            let (ways, granularity) = interleave(control);
            start += skip;
            if (base..base + len).contains(&address) {
                let offset = address - base;
                let turns = offset / granularity / ways;
                return Some((device, start + turns * granularity + offset % granularity));
            }
            start += len / ways;
        }
        None
    }
}

fn decoder_of(component: &Simulated, address: u64) -> Option<[u64; 4]> {
    let mut all = (0..4).filter_map(|n| component.committed(n));
    all.find(|&[base, len, ..]| (base..base + len).contains(&address))
}

pub(crate) fn index(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

/// Returns the number of ways and the granularity of a control.
fn interleave(control: u64) -> (u64, u64) {
    (1 << (control >> 4 & 0xf), 256 << (control & 0xf))
}

impl Machine for Host {
    type Registers = Simulated;

    fn decoders(&mut self, component: Component) -> Option<(Decoders, &mut Simulated)> {
        if self.removed.contains(&component) {
            return None;
        }
        let (role, registers) = match component {
            Component::Bridge(n) => (Role::Bridge, self.bridges[n].1.as_mut()?),
            Component::Device(n) => (Role::Device, &mut self.devices[n].2),
        };
        let decoders = Decoders::find(&mut registers.clone(), role).ok()??;
        Some((decoders, registers))
    }
}
