//! Adds and removes the memory of ACPI's memory slots, which are DIMMs on QEMU's PCs.
//!
//! This kernel has no AML interpreter, so it drives the registers of the slots itself.

use super::engine::{BUDGET, Engine};
use super::fatal::must;
use super::general_events::GeneralEvents;
use super::memory::AddressSpace;
use super::progress::WATCHDOG;
use super::slot_events::SlotEvents;
use super::slot_region::SlotRegion;
use super::slot_registers::SlotAccess;
use super::take_once::TakeOnce;
use super::this_cpu::ThisCpu;
use core::fmt;
use hotmem::{
    AddError, Announce, AnnounceError, Blocker, NodeId, Offline, OnlineType, PfnRange, Progress,
    RangeError, RegionId,
};
use hotmem_acpi::{Change, Dimm, EjectError, Fault, MemorySlots, Model};
use hotmem_guest::limits::MAX_DIMMS;
use hotmem_virtio::missing_frames;

/// The memory slots of the machine.
pub(crate) struct Dimms {
    slots: MemorySlots<SlotAccess, MAX_DIMMS>,
    events: SlotEvents,
    /// Whether a slot may have changed since the slots were last examined.
    has_event: bool,
    online: OnlineType,
    removal: Option<Removal>,
    /// The addition that was refused for want of kernel memory, and is tried again.
    waiting: Option<Waiting>,
}

/// An addition that waits for kernel memory.
struct Waiting {
    slot: u32,
    dimm: Dimm,
    refusal: Refusal,
}

/// A removal that the host has asked for.
struct Removal {
    slot: u32,
    dimm: Dimm,
    offline: Offline<'static, ThisCpu>,
}

/// What has happened to a slot.
pub(crate) enum Outcome {
    /// The memory is online.
    Added(u32, Dimm),
    /// The memory was refused, and the host was told.
    Refused(u32, Refusal),
    /// The memory was given to the host.
    Removed(u32, Dimm),
    /// The memory stays, and the host was told.
    Kept(u32, Obstacle),
    /// The memory has gone without being asked for.
    Vanished(u32, Dimm),
}

/// The reason why memory was refused.
pub(crate) enum Refusal {
    Slot(Fault),
    Announce(AnnounceError),
    Add(AddError),
    Online(RangeError),
}

/// The reason why memory was not removed.
pub(crate) enum Obstacle {
    Range(RangeError),
    Blocked(Blocker),
    Eject(EjectError),
}

impl Dimms {
    /// Returns the slots, or `None` if the machine has none. Enables their event. Their memory comes
    /// online as `online` says. Ends the run if the machine has too many slots, if their registers cannot
    /// be mapped, or if this is called twice.
    #[inline(never)]
    pub(crate) fn find(
        region: Option<SlotRegion>,
        events: Option<GeneralEvents>,
        online: OnlineType,
        space: &mut AddressSpace,
    ) -> &'static mut Option<Self> {
        static DIMMS: TakeOnce<Option<Dimms>> = TakeOnce::new(None);
        let dimms = DIMMS.take();
        let Some(SlotRegion { place, count }) = region else { return dimms };
        let events = must("memory slots", SlotEvents::open(place, events, space));
        let Some(events) = events else { return dimms };
        let registers = must("memory slots", SlotAccess::open(place, space));
        let slots = must("memory slots", MemorySlots::new(registers, Model::QEMU, count));
        *dimms =
            Some(Dimms { slots, events, has_event: false, online, removal: None, waiting: None });
        dimms
    }

    /// Clears the event, the source of the interrupt. Returns whether it has happened.
    pub(crate) fn ack_interrupt(&mut self) -> bool {
        let happened = self.events.take();
        self.has_event |= happened;
        happened
    }

    /// Handles the next change of a slot, or continues a removal. Returns `None` if there is nothing
    /// to do.
    ///
    /// If an addition lacks kernel memory, returns `Pending` with the number of missing frames. The next
    /// call tries it again, so ask a balloon for the frames first. If there will be none, call
    /// [`refuse_waiting`](Self::refuse_waiting).
    pub(crate) fn step(&mut self, engine: &mut Engine) -> Option<Progress<Outcome, u64>> {
        self.ack_interrupt();
        if core::mem::take(&mut self.has_event) {
            self.slots.notify();
        }
        if let Some(removal) = self.removal.take() {
            return Some(self.continue_removal(removal, engine));
        }
        if let Some(Waiting { slot, dimm, .. }) = self.waiting.take() {
            return Some(self.insert(slot, dimm, engine));
        }
        Some(match self.slots.next_change()? {
            Change::Inserted { slot, dimm } => self.insert(slot, dimm, engine),
            Change::RemovalRequested { slot, dimm } => {
                if region_of(dimm.range, engine).is_none() {
                    // The memory was refused, so nothing uses it.
                    return Some(Progress::Ready(self.eject(slot, dimm)));
                }
                match engine.hotplug.offline(dimm.range) {
                    Ok(offline) => {
                        self.removal = Some(Removal { slot, dimm, offline });
                        Progress::Working
                    }
                    Err(error) => Progress::Ready(self.keep(slot, Obstacle::Range(error))),
                }
            }
            Change::Vanished { slot, dimm } => Progress::Ready(Outcome::Vanished(slot, dimm)),
            Change::Unusable { slot, fault } => {
                Progress::Ready(Outcome::Refused(slot, Refusal::Slot(fault)))
            }
        })
    }

    fn insert(&mut self, slot: u32, dimm: Dimm, engine: &mut Engine) -> Progress<Outcome, u64> {
        match add(dimm.range, NodeId(dimm.proximity), self.online, engine) {
            Ok(()) => {
                self.slots.accept(slot);
                engine.hooks.workload.set_dimm(slot, dimm.range);
                Progress::Ready(Outcome::Added(slot, dimm))
            }
            Err(refusal) => match refusal.missing_frames() {
                0 => Progress::Ready(self.refuse(slot, refusal)),
                frames => {
                    self.waiting = Some(Waiting { slot, dimm, refusal });
                    Progress::Pending(frames)
                }
            },
        }
    }

    /// Returns whether an addition waits for kernel memory.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Refuses the addition that waits for kernel memory, if there is one.
    pub(crate) fn refuse_waiting(&mut self) -> Option<Outcome> {
        let Waiting { slot, refusal, .. } = self.waiting.take()?;
        Some(self.refuse(slot, refusal))
    }

    fn refuse(&mut self, slot: u32, refusal: Refusal) -> Outcome {
        self.slots.reject(slot);
        Outcome::Refused(slot, refusal)
    }

    fn continue_removal(
        &mut self,
        removal: Removal,
        engine: &mut Engine,
    ) -> Progress<Outcome, u64> {
        let Removal { slot, dimm, mut offline } = removal;
        let Engine { hotplug, hooks } = engine;
        match offline.poll(hotplug, hooks, BUDGET) {
            Progress::Working => {
                WATCHDOG.progress();
                self.removal = Some(Removal { slot, dimm, offline });
                Progress::Working
            }
            Progress::Pending(blocker) => {
                offline.cancel(hotplug, hooks);
                Progress::Ready(self.keep(slot, Obstacle::Blocked(blocker)))
            }
            Progress::Ready(_) | Progress::Idle => {
                Progress::Ready(match remove(dimm.range, engine) {
                    Ok(()) => {
                        engine.hooks.workload.set_dimm(slot, PfnRange::EMPTY);
                        self.eject(slot, dimm)
                    }
                    Err(error) => self.keep(slot, Obstacle::Range(error)),
                })
            }
        }
    }

    fn eject(&mut self, slot: u32, dimm: Dimm) -> Outcome {
        match self.slots.eject(slot) {
            Ok(()) => Outcome::Removed(slot, dimm),
            Err(error) => Outcome::Kept(slot, Obstacle::Eject(error)),
        }
    }

    fn keep(&mut self, slot: u32, obstacle: Obstacle) -> Outcome {
        self.slots.refuse(slot);
        Outcome::Kept(slot, obstacle)
    }
}

impl Refusal {
    /// Returns the number of frames of kernel memory that must be free before the same addition can
    /// succeed, or 0 if it was refused for another reason.
    fn missing_frames(&self) -> u64 {
        match self {
            Refusal::Announce(AnnounceError::NoMetadata(bytes)) => bytes.frames(),
            Refusal::Add(error) => missing_frames(error),
            Refusal::Announce(AnnounceError::Range(_)) | Refusal::Slot(_) | Refusal::Online(_) => 0,
        }
    }
}

/// Announces the memory, adds it and puts it online.
pub(super) fn add(
    range: PfnRange,
    node: NodeId,
    kind: OnlineType,
    engine: &mut Engine,
) -> Result<(), Refusal> {
    let Engine { hotplug, hooks } = engine;
    let announce = Announce { node, ..range.into() };
    let region = hotplug.announce(announce).map_err(Refusal::Announce)?;
    let added = hotplug.add(range).map_err(Refusal::Add);
    let online = added.and_then(|()| {
        hotplug.online(range, kind, hooks).map_err(|error| {
            // The memory was just added and is offline, so removing it cannot fail.
            must("DIMM", hotplug.remove(range));
            Refusal::Online(error)
        })
    });
    online.inspect_err(|_| {
        // Nothing of the region is present, so withdrawing it cannot fail.
        must("DIMM", hotplug.withdraw(region));
    })
}

/// Removes memory that is offline.
pub(super) fn remove(range: PfnRange, engine: &mut Engine) -> Result<(), RangeError> {
    engine.hotplug.remove(range)?;
    match region_of(range, engine) {
        Some(region) => engine.hotplug.withdraw(region),
        None => Ok(()),
    }
}

fn region_of(range: PfnRange, engine: &Engine) -> Option<RegionId> {
    let mut regions = engine.hotplug.regions();
    regions.find(|&(_, announced)| announced == range).map(|(region, _)| region)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Slot(fault) => fault.fmt(f),
            Refusal::Announce(error) => error.fmt(f),
            Refusal::Add(error) => error.fmt(f),
            Refusal::Online(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Range(error) => error.fmt(f),
            Obstacle::Blocked(blocker) => blocker.fmt(f),
            Obstacle::Eject(error) => error.fmt(f),
        }
    }
}
