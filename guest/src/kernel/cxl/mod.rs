//! Finds CXL memory devices, routes addresses to them, and binds their memory as device memory.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the search for devices, and the choice of their addresses |
//! | `device.rs` | a device: its registers and its capacity |
//! | `topology.rs` | bridges and devices, and their decoders |
//! | `dynamic.rs` | dynamic capacity, which is RAM while a device lends it |
//! | `dynamic/list.rs` | the device's list of what is accepted |
//! | `dynamic/outcome.rs` | what happens to extents and to requests |
//! | `registers.rs` | access to registers |
//! | `error.rs` | why a device is not used |

mod device;
mod dynamic;
mod error;
mod registers;
mod topology;

use super::dax::{DaxMemories, DaxMemory};
use super::device_memory::BindParameters;
use super::engine::Engine;
use super::firmware::CxlFirmware;
use super::pci::Buses;
use super::progress::WATCHDOG;
use super::take_once::TakeOnce;
use crate::arch::{Clock, Console};
use device::MemoryDevice;
pub(crate) use dynamic::Outcome;
use dynamic::{Buffer, DynamicMemory, Lender};
use error::CxlError;
use hotmem::{Bytes, NodeId, PfnRange};
use hotmem_cxl::cedt::Window;
use hotmem_cxl::config::MEMORY_DEVICE_CLASS;
use hotmem_cxl::plan::Plan;
use hotmem_guest::cmdline::Options;
use hotmem_guest::cxl::{MAX_CXL, Members, choose_members};
use hotmem_guest::event::CxlEvent;
use hotmem_guest::report::Report;
use topology::Topology;
use virtio_drivers::transport::pci::bus::{DeviceFunction, DeviceFunctionInfo};

/// The CXL memory of the machine.
pub(crate) struct Cxl {
    topology: Topology,
    /// How addresses are routed to each memory, by its number among all memory of devices.
    plans: [Option<Plan>; MAX_CXL],
    /// The dynamic capacity, by the numbers of the memories.
    dynamic: [Option<DynamicMemory>; MAX_CXL],
    buffer: Buffer,
    /// Which devices belong to some memory.
    used: [bool; MAX_CXL],
}

static CXL: TakeOnce<Cxl> = TakeOnce::new(Cxl {
    topology: Topology::EMPTY,
    plans: [None; MAX_CXL],
    dynamic: [const { None }; MAX_CXL],
    buffer: [0; size_of::<Buffer>()],
    used: [false; MAX_CXL],
});

impl Cxl {
    /// Returns whether a PCI function is a memory device.
    pub(crate) fn is_at(info: &DeviceFunctionInfo) -> bool {
        [info.class, info.subclass, info.prog_if] == MEMORY_DEVICE_CLASS
    }

    /// Opens the memory devices among `functions`, whose BARs are mapped, and binds their memory. What
    /// cannot be used is reported.
    #[inline(never)]
    pub(crate) fn open(
        firmware: CxlFirmware,
        functions: impl Iterator<Item = DeviceFunction>,
        (buses, engine, dax): (&mut Buses, &mut Engine, &mut DaxMemories),
        (clock, options): (&Clock, &Options),
        report: &mut Report<Console>,
    ) -> &'static mut Self {
        let cxl = CXL.take();
        for fault in firmware.table.faults.iter() {
            report.cxl(CxlEvent::Refused { device: None, why: fault });
        }
        for bridge in firmware.table.platform.bridges() {
            if let Err(error) = cxl.topology.add_bridge(bridge, engine.space()) {
                report.cxl(CxlEvent::Refused { device: None, why: &error });
            }
        }
        for (number, function) in functions.enumerate() {
            WATCHDOG.progress();
            match MemoryDevice::open(buses, function, clock) {
                Ok(device) => cxl.add(number, device, report),
                Err(error) => {
                    report.cxl(CxlEvent::Refused { device: Some(number), why: &error });
                }
            }
        }
        cxl.bind_all(firmware, (clock, options), (engine, dax), report);
        cxl
    }

    fn add(&mut self, number: usize, device: MemoryDevice, report: &mut Report<Console>) {
        let Some(place) = self.topology.devices.get_mut(number) else {
            let why = &CxlError::TooMany;
            return report.cxl(CxlEvent::Refused { device: Some(number), why });
        };
        let size = Bytes(device.memory.end - device.memory.start);
        let (bridge, kind) = (device.bridge, device.kind_name());
        report.cxl(CxlEvent::Device { device: number, bridge, kind, size });
        *place = Some(device);
    }

    /// Routes the windows to the devices, in the order of both, and binds the memory.
    #[inline(never)]
    fn bind_all(
        &mut self,
        firmware: CxlFirmware,
        (clock, options): (&Clock, &Options),
        (engine, dax): (&mut Engine, &mut DaxMemories),
        report: &mut Report<Console>,
    ) {
        for window in firmware.table.platform.windows() {
            let ways = usize::from(options.ways).max(window.ways.count());
            while let Some(members) = self.free_members(window, ways)
                && let Some(number) = self.plans.iter().position(Option::is_none)
            {
                members.iter().for_each(|&member| self.used[member] = true);
                let start_us = clock.now_us();
                let place = &mut self.plans[number];
                let routed = self.topology.commit(window, &members, place, clock);
                let bound = routed.and_then(|()| {
                    let node = u32::try_from(number).unwrap_or(u32::MAX);
                    let node = NodeId(firmware.next_node.saturating_add(node));
                    self.bind(number, &members, node, (clock, options), (engine, dax))
                });
                let us = clock.now_us().saturating_sub(start_us);
                match bound {
                    Ok((range, node)) => {
                        let (addr, size) = (range.start().phys_addr(), range.bytes());
                        let (memory, ways, node) = (number, members.len(), node.0);
                        report.cxl(CxlEvent::Memory { memory, addr, size, ways, node, us });
                    }
                    Err(error) => {
                        let device = members.first().copied();
                        report.cxl(CxlEvent::Refused { device, why: &error });
                    }
                }
            }
        }
        for (number, device) in self.topology.devices.iter().enumerate() {
            if device.is_some() && !self.used[number] {
                let why = &CxlError::NoWindow;
                report.cxl(CxlEvent::Refused { device: Some(number), why });
            }
        }
    }

    /// Makes the memory of a plan device memory, or announces it if it is dynamic capacity.
    #[inline(never)]
    fn bind(
        &mut self,
        number: usize,
        members: &Members,
        node: NodeId,
        (clock, options): (&Clock, &Options),
        (engine, dax): (&mut Engine, &mut DaxMemories),
    ) -> Result<(PfnRange, NodeId), CxlError> {
        let plan = self.plans[number].as_ref().ok_or(CxlError::NoWindow)?;
        let range = plan.range();
        let first = members.first().copied().unwrap_or_default();
        let device = self.topology.devices[first].as_mut().ok_or(CxlError::NoMemory)?;
        if device.dynamic.is_some() {
            let lender = Lender { device, plan, clock, buffer: &mut self.buffer };
            let memory = DynamicMemory::announce(&lender, first, node, options, engine)?;
            engine.hooks.workload.set_dax(number, range);
            self.dynamic[number] = Some(memory);
        } else {
            let parameters = BindParameters::described_in_memory(options);
            let memory = DaxMemory::bind(range, node, parameters, options.seed, engine)?;
            dax.add(number, memory)?;
        }
        Ok((range, node))
    }

    /// Returns the number of memories, which have the first numbers.
    pub(crate) fn memory_count(&self) -> usize {
        self.plans.iter().flatten().count()
    }

    /// Handles events of devices with dynamic capacity. `report` is told the number of the memory, and
    /// what happens to each extent. Returns whether there was an event.
    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        clock: &Clock,
        report: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> bool {
        let mut has_happened = false;
        for (number, dynamic) in self.dynamic.iter_mut().enumerate() {
            let Some(dynamic) = dynamic else { continue };
            let device = self.topology.devices[dynamic.device()].as_mut();
            let (Some(device), Some(plan)) = (device, &self.plans[number]) else { continue };
            let mut lender = Lender { device, plan, clock, buffer: &mut self.buffer };
            has_happened |=
                dynamic.step(&mut lender, engine, &mut |outcome| report(number, outcome));
        }
        has_happened
    }

    /// Returns devices without addresses, as many below each bridge of a window.
    fn free_members(&self, window: &Window, ways: usize) -> Option<Members> {
        let candidates = self.topology.candidates(window, |device| !self.used[device]);
        choose_members(window.targets(), ways, &candidates)
    }
}
