//! Whether the zone that a device's memory is in is contiguous, asked after each change.

use super::boot_memory::LOW_END;
use super::hooks::KernelMapping;
use super::memory::FRAMES;
use super::smp::ThisCpu;
use hotmem::{Hotplug, NodeId, PfnRange, State, Zone, ZoneInfo};
use hotmem_guest::event::ZoneReport;

/// The engine's control path, as this kernel has it.
type Engine = Hotplug<'static, ThisCpu, KernelMapping>;

/// A zone, and the answers that it has given.
pub(crate) struct ZoneWatch {
    node: NodeId,
    part: Part,
    asked: u64,
    contiguous: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Low,
    Kernel,
    Movable,
}

impl ZoneWatch {
    /// The zone in which `range` is online; `None` if it is not.
    pub(crate) fn at(range: PfnRange, engine: &Engine) -> Option<ZoneWatch> {
        let part = match engine.state_at(range.start(), range.end()).1 {
            State::OnlineMovable => Part::Movable,
            State::Online if range.start() < LOW_END => Part::Low,
            State::Online => Part::Kernel,
            _ => return None,
        };
        let node = FRAMES.node_of(range.start())?;
        Some(ZoneWatch { node, part, asked: 0, contiguous: 0 })
    }

    /// Whether both are the same zone.
    pub(crate) fn is_same(&self, other: &ZoneWatch) -> bool {
        (self.node, self.part) == (other.node, other.part)
    }

    /// Asks whether it is contiguous, if anything is online in it.
    pub(crate) fn ask(&mut self, engine: &Engine) {
        let info = self.info(engine);
        if info.online != 0 {
            self.asked += 1;
            self.contiguous += u64::from(info.is_contiguous());
        }
    }

    /// The answers since the last report, if there were any.
    pub(crate) fn report(&mut self, engine: &Engine) -> Option<ZoneReport> {
        let asked = core::mem::take(&mut self.asked);
        let contiguous = core::mem::take(&mut self.contiguous);
        let info = self.info(engine);
        (asked != 0).then_some(ZoneReport { name: self.part.name(), info, asked, contiguous })
    }

    fn info(&self, engine: &Engine) -> ZoneInfo {
        match self.part {
            Part::Low => engine.low_zone(self.node),
            Part::Kernel => engine.zone(self.node, Zone::Kernel),
            Part::Movable => engine.zone(self.node, Zone::Movable),
        }
    }
}

impl Part {
    const fn name(self) -> &'static str {
        match self {
            Part::Low => "low",
            Part::Kernel => "kernel",
            Part::Movable => "movable",
        }
    }
}
