//! Memory that a device offers in extents and asks back: it is RAM while the device lends it.

mod list;
mod outcome;

use super::device::MemoryDevice;
use super::error::CxlError;
use crate::arch::Clock;
use crate::kernel::dax::{DaxError, check_mappable};
use crate::kernel::engine::{BUDGET, Engine, online_type};
use crate::kernel::fatal::{give_up, must};
use crate::kernel::progress::WATCHDOG;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{Announce, NodeId, OnlineType, PfnRange, Progress};
use hotmem_cxl::command::{Event, EventPage, Extent, More, clear_event, get_events, opcode};
use hotmem_cxl::plan::Plan;
use hotmem_cxl::{CapacityError, DynamicCapacity, EventLog, MailboxError, RequestKind};
use hotmem_guest::cmdline::Options;
use hotmem_guest::fixed_list::FixedList;
pub(crate) use outcome::Outcome;
use outcome::{DynamicError, Obstacle};

/// The maximal number of extents that are not adjacent, and of extents in a request.
const MAX_EXTENTS: usize = 8;
/// Why an extent is not accepted, or not given back, that would make more of them.
const NO_ROOM: CapacityError = CapacityError::Full { capacity: MAX_EXTENTS };
/// The size of the buffer for answers: that of the largest mailbox that the kernel uses.
const BUFFER: usize = 4096;
/// Memory for answers and payloads.
pub(super) type Buffer = [u8; BUFFER];
/// The number of requests in turn that may fail.
const MAX_FAILURES: u32 = 3;

/// The dynamic capacity of a device.
pub(crate) struct DynamicMemory {
    device: usize,
    /// The addresses in which extents can be.
    range: PfnRange,
    online: OnlineType,
    capacity: DynamicCapacity<MAX_EXTENTS>,
    /// Whether the memory is online that was accepted before boot.
    has_adopted: bool,
    /// The number of events that were lost, as the device said last.
    lost: u16,
    /// Whether events were lost since the log was empty, perhaps the rest of a request.
    is_cut: bool,
    /// The number of requests in turn that have failed.
    failures: u32,
    /// The number of answers until one is sent that the device refuses; 0 if there is none.
    until_refused: u32,
}

/// A device, and how addresses are routed to it.
pub(super) struct Lender<'a> {
    pub(super) device: &'a mut MemoryDevice,
    pub(super) plan: &'a Plan,
    pub(super) clock: &'a Clock,
    pub(super) buffer: &'a mut Buffer,
}

impl DynamicMemory {
    /// Announces the addresses of a device's dynamic capacity as memory of `node`.
    pub(super) fn announce(
        lender: &Lender<'_>,
        number: usize,
        node: NodeId,
        options: &Options,
        engine: &mut Engine,
    ) -> Result<Self, CxlError> {
        let range = lender.plan.range();
        check_mappable(range)?;
        let region = lender.device.dynamic.ok_or(CxlError::NoMemory)?;
        let announced = engine.hotplug.announce(Announce { node, ..range.into() });
        announced.map_err(DaxError::Announce)?;
        let capacity = DynamicCapacity::new(&[region]);
        Ok(DynamicMemory {
            device: number,
            range,
            online: online_type(options.online),
            capacity,
            has_adopted: false,
            lost: 0,
            is_cut: false,
            failures: 0,
            until_refused: options.refused,
        })
    }

    /// Returns the number of the device.
    pub(super) fn device(&self) -> usize {
        self.device
    }

    /// Handles the device's events, if there are any. Costs one read of a register if there are none.
    /// `report` is told what happens to each extent. Returns whether there was an event.
    ///
    /// An error ends the request. After [`MAX_FAILURES`] errors in turn, or one after which it is unknown
    /// what the device has, the device is not served any more.
    #[inline(never)]
    pub(super) fn step(
        &mut self,
        lender: &mut Lender<'_>,
        engine: &mut Engine,
        report: &mut dyn FnMut(Outcome<'_>),
    ) -> bool {
        if self.failures >= MAX_FAILURES {
            return false;
        }
        let error = match self.handle_event(lender, engine, report) {
            Ok(has_happened) => {
                self.failures = 0;
                return has_happened;
            }
            Err(error) => error,
        };
        self.capacity.failed();
        let is_final = error.is_final() || !self.has_adopted;
        self.failures = if is_final { MAX_FAILURES } else { self.failures + 1 };
        report(Outcome::Failed(&error));
        if self.failures >= MAX_FAILURES {
            report(Outcome::GivenUp);
        }
        true
    }

    fn handle_event(
        &mut self,
        lender: &mut Lender<'_>,
        engine: &mut Engine,
        report: &mut dyn FnMut(Outcome<'_>),
    ) -> Result<bool, DynamicError> {
        if !self.has_adopted {
            self.adopt(lender, engine, report)?;
            self.has_adopted = true;
        }
        let MemoryDevice { state, registers, .. } = &mut *lender.device;
        if !state.has_events(registers, EventLog::DynamicCapacity)? {
            return self.end_of_events(lender, engine, report);
        }
        let len = lender.command(opcode::GET_EVENTS, &get_events())?;
        let page = EventPage::read(&lender.buffer[..len])?;
        // The device counts anew when the log has been empty.
        let lost = page.lost.checked_sub(self.lost).unwrap_or(page.lost);
        if lost > 0 {
            report(Outcome::EventsLost(lost));
        }
        (self.lost, self.is_cut) = (page.lost, self.is_cut || lost > 0);
        // The buffer is needed for other commands before the next event is handled, so that all others
        // are read again.
        let Some(record) = page.records().next() else { return Ok(false) };
        match self.capacity.take(&record.event) {
            Ok(()) => {}
            Err(CapacityError::Unanswered) => {
                self.answer(lender, engine, report)?;
                self.take(&record.event, report);
            }
            Err(error) => report(Outcome::Ignored(error)),
        }
        lender.command(opcode::CLEAR_EVENTS, &clear_event(record.handle))?;
        self.answer(lender, engine, report)?;
        Ok(true)
    }

    /// Answers a request whose rest was lost, as if the extents that have come were all. Returns whether
    /// there was one.
    fn end_of_events(
        &mut self,
        lender: &mut Lender<'_>,
        engine: &mut Engine,
        report: &mut dyn FnMut(Outcome<'_>),
    ) -> Result<bool, DynamicError> {
        if !core::mem::take(&mut self.is_cut) {
            return Ok(false);
        }
        self.capacity.end_request();
        let is_cut = self.capacity.request().is_some();
        self.answer(lender, engine, report)?;
        Ok(is_cut)
    }

    fn take(&mut self, event: &Event, report: &mut dyn FnMut(Outcome<'_>)) {
        if let Err(error) = self.capacity.take(event) {
            report(Outcome::Ignored(error));
        }
    }

    /// Answers the request, if it is complete.
    fn answer(
        &mut self,
        lender: &mut Lender<'_>,
        engine: &mut Engine,
        report: &mut dyn FnMut(Outcome<'_>),
    ) -> Result<(), DynamicError> {
        let Some((kind, requested)) = self.capacity.request() else { return Ok(()) };
        let mut extents = [Extent::default(); MAX_EXTENTS];
        let count = requested.len();
        extents[..count].copy_from_slice(requested);
        let extents = &extents[..count];
        match kind {
            RequestKind::Add => self.accept(extents, lender, engine, report)?,
            RequestKind::Release => self.release(lender, engine, report)?,
            // The device has taken back what was not accepted.
            RequestKind::ForcedRelease if extents.is_empty() => {
                self.capacity.answer(|_| true)?;
            }
            RequestKind::ForcedRelease => {
                give_up(format_args!("CXL: the device has taken {extents:x?} back"))
            }
        }
        self.check(lender, engine)
    }

    /// Accepts the extents that can be used, and puts their memory online.
    fn accept(
        &mut self,
        extents: &[Extent],
        lender: &mut Lender<'_>,
        engine: &mut Engine,
        report: &mut dyn FnMut(Outcome<'_>),
    ) -> Result<(), DynamicError> {
        self.capacity.answer(|extent| range_of(lender.plan, extent).is_some())?;
        if let Err(error) = self.send(lender)? {
            if matches!(error, MailboxError::Refused { .. }) {
                self.decline(extents, lender)?;
            }
            return Err(error.into());
        }
        for &extent in extents {
            let Some(range) = range_of(lender.plan, extent) else {
                report(Outcome::Refused(self.range, &Obstacle::Addresses));
                continue;
            };
            let accepted = self.capacity.accepted();
            if !accepted.iter().any(|one| (one.start..one.start + one.len).contains(&extent.start))
            {
                report(Outcome::Refused(range, &NO_ROOM));
                continue;
            }
            match self.add(range, engine) {
                Ok(()) => report(Outcome::Added(range)),
                Err(obstacle) => {
                    self.give_back(extent, lender)?;
                    report(Outcome::Refused(range, &obstacle));
                }
            }
        }
        Ok(())
    }

    /// Accepts none of the extents, because the device waits for an answer that it does not refuse.
    fn decline(&mut self, extents: &[Extent], lender: &mut Lender<'_>) -> Result<(), DynamicError> {
        if extents.is_empty() {
            return Ok(());
        }
        for &extent in extents {
            self.capacity.take(&Event::Add(extent, More::Follows))?;
        }
        self.capacity.end_request();
        self.capacity.answer(|_| false)?;
        self.send(lender)?.map_err(DynamicError::Mailbox)
    }

    /// Gives an accepted extent back that the device does not ask for.
    fn give_back(&mut self, extent: Extent, lender: &mut Lender<'_>) -> Result<(), DynamicError> {
        self.capacity.take(&Event::Release(extent, More::Last))?;
        self.capacity.answer(|_| true)?;
        self.send(lender)?.map_err(DynamicError::Mailbox)
    }

    /// Removes the memory of the extents that the device asks for, and gives back what is free.
    fn release(
        &mut self,
        lender: &mut Lender<'_>,
        engine: &mut Engine,
        report: &mut dyn FnMut(Outcome<'_>),
    ) -> Result<(), DynamicError> {
        let plan = lender.plan;
        let mut removed = FixedList::<_, MAX_EXTENTS>::empty(PfnRange::EMPTY);
        let without_room = self.capacity.answer(|extent| {
            let Some(range) = range_of(plan, extent) else { return false };
            match remove(range, engine) {
                // There are no more extents than places.
                Ok(()) => removed.push(range).is_ok(),
                Err(obstacle) => {
                    report(Outcome::Refused(range, &obstacle));
                    false
                }
            }
        })?;
        if let Err(error) = self.send(lender)? {
            // What the device has refused stays accepted. After any other error, nobody knows.
            if matches!(error, MailboxError::Refused { .. }) {
                for &range in removed.iter() {
                    if let Err(obstacle) = self.add(range, engine) {
                        give_up(format_args!("CXL: {range} is accepted, but {obstacle}"));
                    }
                }
            }
            return Err(error.into());
        }
        if without_room > 0 {
            report(Outcome::Ignored(NO_ROOM));
        }
        // The device has them only now.
        removed.iter().for_each(|&range| report(Outcome::Removed(range)));
        Ok(())
    }

    /// Sends the answer. Returns why the device refuses it.
    fn send(&mut self, lender: &mut Lender<'_>) -> Result<Result<(), MailboxError>, DynamicError> {
        let room = lender.device.payload_len().min(BUFFER);
        let mut none = [0; 16];
        while let Some((command, len)) = self.capacity.payload(&mut lender.buffer[..room])? {
            let command = self.perhaps_refused(command);
            let Lender { device, buffer, clock, .. } = &mut *lender;
            match device.command(command, &buffer[..len], &mut none, clock) {
                Ok(_) => _ = self.capacity.delivered(),
                Err(error) => {
                    self.capacity.failed();
                    return Ok(Err(error));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Returns the command of an answer, or one that no device has, if that is its turn.
    fn perhaps_refused(&mut self, command: u16) -> u16 {
        const UNKNOWN: u16 = 0x80;
        let is_refused = self.until_refused == 1;
        self.until_refused = self.until_refused.saturating_sub(1);
        if is_refused { command | UNKNOWN } else { command }
    }

    fn add(&self, range: PfnRange, engine: &mut Engine) -> Result<(), Obstacle> {
        let Engine { hotplug, hooks } = engine;
        hotplug.add(range).map_err(Obstacle::Add)?;
        hotplug.online(range, self.online, hooks).map_err(|error| {
            // The memory was just added and is offline, so removing it cannot fail.
            must("CXL", hotplug.remove(range));
            Obstacle::Online(error)
        })
    }
}

impl Lender<'_> {
    /// Sends a command. Returns the length of the answer, which is in the buffer.
    fn command(&mut self, opcode: u16, payload: &[u8]) -> Result<usize, MailboxError> {
        self.device.command(opcode, payload, self.buffer, self.clock)
    }
}

/// Returns the addresses of an extent, if they are whole pageblocks. The plan has one device.
fn range_of(plan: &Plan, extent: Extent) -> Option<PfnRange> {
    let range = plan.range_of(0, extent)?;
    (range == range.align_inward(PAGEBLOCK_FRAMES as u64)).then_some(range)
}

/// Takes memory offline and removes it.
fn remove(range: PfnRange, engine: &mut Engine) -> Result<(), Obstacle> {
    let Engine { hotplug, hooks } = engine;
    let mut offline = hotplug.offline(range).map_err(Obstacle::Offline)?;
    loop {
        match offline.poll(hotplug, hooks, BUDGET) {
            Progress::Working => WATCHDOG.progress(),
            Progress::Ready(_) | Progress::Idle => break,
            Progress::Pending(blocker) => {
                offline.cancel(hotplug, hooks);
                return Err(Obstacle::Blocked(blocker));
            }
        }
    }
    hotplug.remove(range).map_err(Obstacle::Offline)
}
