//! The bridges and devices of the machine, and the decoders that route windows to them.

use super::device::MemoryDevice;
use super::error::CxlError;
use super::registers::Block;
use crate::arch::Clock;
use crate::kernel::memory::AddressSpace;
use crate::kernel::progress::WATCHDOG;
use core::task::Poll;
use core::time::Duration;
use hotmem::Bytes;
use hotmem_cxl::cedt::Window;
use hotmem_cxl::plan::{self, Component, Execution, Plan, PlanFailure, Wish};
use hotmem_cxl::{Decoders, Granularity, Role, UNIT};
use hotmem_directmap::Caching;
use hotmem_guest::cxl::{Candidate, MAX_CXL, Members, MemoryKind};
use hotmem_guest::fixed_list::FixedList;

/// The bytes of a device that follow each other, where the window does not say it.
const GRANULARITY: Granularity = Granularity::MIN;

/// A host bridge.
struct Bridge {
    uid: u32,
    registers: Block,
    /// `None`: the bridge has one port, and passes all addresses to it.
    decoders: Option<Decoders>,
}

/// The bridges and devices that can be used.
pub(super) struct Topology {
    bridges: [Option<Bridge>; MAX_CXL],
    pub(super) devices: [Option<MemoryDevice>; MAX_CXL],
}

impl Topology {
    pub(super) const EMPTY: Self =
        Topology { bridges: [const { None }; MAX_CXL], devices: [const { None }; MAX_CXL] };

    /// Adds a bridge of the CEDT, and maps its registers.
    pub(super) fn add_bridge(
        &mut self,
        bridge: &hotmem_cxl::cedt::HostBridge,
        space: &mut AddressSpace,
    ) -> Result<(), CxlError> {
        let (start, len) = (bridge.registers.start().phys_addr(), hotmem_cxl::COMPONENT_BYTES);
        let start = space.map_bytes(start, len, Caching::Uncached)?;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        // SAFETY: the registers are mapped, and are at least so long.
        let mut registers = unsafe { Block::new(start, len) };
        let decoders = Decoders::find(&mut registers, Role::Bridge)?;
        let place = self.bridges.iter_mut().find(|place| place.is_none());
        *place.ok_or(CxlError::TooMany)? = Some(Bridge { uid: bridge.uid, registers, decoders });
        Ok(())
    }

    /// Returns the devices for which `is_free` is true, and whose memory the window allows.
    pub(super) fn candidates(
        &self,
        window: &Window,
        is_free: impl Fn(usize) -> bool,
    ) -> FixedList<Candidate, MAX_CXL> {
        let mut list =
            FixedList::empty(Candidate { device: 0, bridge: 0, kind: MemoryKind::Volatile });
        for (number, device) in self.devices.iter().enumerate() {
            let usable = |device: &&MemoryDevice| is_free(number) && device.is_allowed_in(window);
            if let Some(device) = device.as_ref().filter(usable) {
                // There are no more devices than places.
                let (bridge, kind) = (device.bridge, device.memory_kind());
                let _ = list.push(Candidate { device: number, bridge, kind });
            }
        }
        list
    }

    /// Plans how addresses of a window alternate between the members, puts the plan into `place`, and
    /// commits its decoders.
    #[inline(never)]
    pub(super) fn commit(
        &mut self,
        window: &Window,
        members: &Members,
        place: &mut Option<Plan>,
        clock: &Clock,
    ) -> Result<(), CxlError> {
        let plan = place.insert(self.plan(window, members)?);
        let committed = self.execute(Execution::commit(plan), members, clock);
        Ok(committed.inspect_err(|_| *place = None)?)
    }

    #[inline(never)]
    fn plan(&mut self, window: &Window, members: &Members) -> Result<Plan, CxlError> {
        let mut bridges = FixedList::<_, MAX_CXL>::empty(plan::Bridge { uid: 0, decoders: None });
        for bridge in self.bridges.iter_mut().flatten() {
            let Bridge { uid, registers, decoders } = bridge;
            let decoders = decoders.map(|decoders| decoders.occupancy(registers)).transpose()?;
            bridges.push(plan::Bridge { uid: *uid, decoders }).map_err(|_| CxlError::TooMany)?;
        }
        let first = self.planned(members, 0)?;
        let mut devices: [_; MAX_CXL] = core::array::from_fn(|_| first.clone());
        for (n, place) in devices.iter_mut().enumerate().take(members.len()).skip(1) {
            *place = self.planned(members, n)?;
        }
        let devices = &devices[..members.len()];
        let free = devices.iter().map(|device| {
            let start = device.memory.start.max(device.decoders.memory_end);
            device.memory.end.saturating_sub(start)
        });
        let len = free.min().unwrap_or(0);
        let kind = self.devices[members[0]].as_ref().map(|device| device.kind);
        let (len, kind) = (Bytes(len / UNIT * UNIT), kind.ok_or(CxlError::NoMemory)?);
        let wish = Wish { len, granularity: GRANULARITY, kind };
        Ok(Plan::new(window, &bridges, devices, wish)?)
    }

    /// Returns a member as the planner needs it.
    fn planned(&mut self, members: &Members, n: usize) -> Result<plan::Device, CxlError> {
        let device = members.get(n).and_then(|&member| self.devices[member].as_mut());
        device.ok_or(CxlError::NoMemory)?.for_plan()
    }

    /// Commits the decoders of a plan, or frees them.
    pub(super) fn execute(
        &mut self,
        mut execution: Execution<'_>,
        members: &Members,
        clock: &Clock,
    ) -> Result<(), PlanFailure> {
        let mut machine = Machine { topology: self, members };
        loop {
            // Each decoder has a time limit.
            WATCHDOG.progress();
            let now = Duration::from_micros(clock.now_us());
            if let Poll::Ready(result) = execution.poll(&mut machine, now) {
                return result;
            }
        }
    }
}

/// The components of a plan: its devices are `members`.
struct Machine<'a> {
    topology: &'a mut Topology,
    members: &'a Members,
}

impl plan::Machine for Machine<'_> {
    type Registers = Block;

    fn decoders(&mut self, component: Component) -> Option<(Decoders, &mut Block)> {
        match component {
            Component::Bridge(number) => {
                let bridge = self.topology.bridges.iter_mut().flatten().nth(number)?;
                Some((bridge.decoders?, &mut bridge.registers))
            }
            Component::Device(number) => {
                let device = self.topology.devices[*self.members.get(number)?].as_mut()?;
                Some((device.decoders, &mut device.component))
            }
        }
    }
}
