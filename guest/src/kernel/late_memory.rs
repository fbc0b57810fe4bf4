//! Adds memory that the machine has had since boot and that the engine was not told of, and removes it
//! again, on machines without a device for that.

use super::dimms::{self, Refusal};
use super::engine::{BUDGET, Engine};
use super::progress::WATCHDOG;
use super::take_once::TakeOnce;
use super::this_cpu::ThisCpu;
use core::fmt;
use hotmem::{Blocker, Bytes, NodeId, Offline, OnlineType, Progress, RangeError};
use hotmem_guest::late_memory::LateRanges;

/// The time after which a removal is given up. Another CPU blocks it only for moments.
const MAX_BLOCKED_US: u64 = 20_000_000;

/// The late memory. Its ranges are added one by one, and removed in the opposite order.
pub(crate) struct LateMemory {
    ranges: LateRanges,
    online: OnlineType,
    /// The number of ranges that are present.
    present: usize,
    /// Whether the ranges are being removed.
    is_removing: bool,
    removal: Option<Offline<'static, ThisCpu>>,
    /// When the present change began.
    since_us: Option<u64>,
    /// When memory that is in use began to block the removal.
    blocked_since_us: Option<u64>,
    /// The number of changes so far.
    changes: u32,
}

/// All late memory was added or removed.
pub(crate) struct Change {
    pub(crate) is_removal: bool,
    pub(crate) size: Bytes,
    /// The time of the change.
    pub(crate) us: u64,
}

/// The reason why late memory was not added or removed.
pub(crate) enum LateError {
    Refused(Refusal),
    Range(RangeError),
    Blocked(Blocker),
}

impl LateMemory {
    /// Makes the memory, which comes online as `online` says, or `None` if there is none. Ends the run at
    /// the second call.
    #[inline(never)]
    pub(crate) fn begin(ranges: LateRanges, online: OnlineType) -> &'static mut Option<Self> {
        static LATE_MEMORY: TakeOnce<Option<LateMemory>> = TakeOnce::new(None);
        let place = LATE_MEMORY.take();
        *place = (!ranges.is_empty()).then_some(LateMemory {
            ranges,
            online,
            present: 0,
            is_removing: false,
            removal: None,
            since_us: None,
            blocked_since_us: None,
            changes: 0,
        });
        place
    }

    /// Returns the number of times that the memory was added or removed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Returns whether a change has begun and is not complete.
    pub(crate) fn is_changing(&self) -> bool {
        self.since_us.is_some()
    }

    /// Adds or removes some of the memory. Returns the change when it is complete; the next call begins
    /// the opposite one.
    pub(crate) fn step(
        &mut self,
        engine: &mut Engine,
        now_us: impl Fn() -> u64,
    ) -> Result<Option<Change>, LateError> {
        let since_us = *self.since_us.get_or_insert_with(&now_us);
        let is_complete = if self.is_removing {
            self.remove_some(engine, &now_us)?
        } else {
            self.add_one(engine)?
        };
        WATCHDOG.progress();
        if !is_complete {
            return Ok(None);
        }
        let is_removal = self.is_removing;
        self.is_removing = !is_removal;
        self.since_us = None;
        self.changes += 1;
        let size = self.ranges.iter().fold(Bytes::ZERO, |sum, range| sum + range.bytes());
        Ok(Some(Change { is_removal, size, us: now_us().saturating_sub(since_us) }))
    }

    /// Adds a range. Returns whether all are present.
    fn add_one(&mut self, engine: &mut Engine) -> Result<bool, LateError> {
        let range = self.ranges[self.present];
        dimms::add(range, NodeId::ZERO, self.online, engine).map_err(LateError::Refused)?;
        // The workload treats the range as the memory of a slot.
        engine.hooks.workload.set_dimm(slot(self.present), range);
        self.present += 1;
        Ok(self.present == self.ranges.len())
    }

    /// Continues the removal of the last range that is present. Returns whether none is present.
    fn remove_some(
        &mut self,
        engine: &mut Engine,
        now_us: impl Fn() -> u64,
    ) -> Result<bool, LateError> {
        let last = self.present - 1;
        let range = self.ranges[last];
        let mut offline = match self.removal.take() {
            Some(offline) => offline,
            None => engine.hotplug.offline(range).map_err(LateError::Range)?,
        };
        let Engine { hotplug, hooks } = &mut *engine;
        match offline.poll(hotplug, hooks, BUDGET) {
            Progress::Working => {
                self.removal = Some(offline);
                self.blocked_since_us = None;
            }
            Progress::Pending(blocker) => {
                let since_us = *self.blocked_since_us.get_or_insert_with(&now_us);
                if now_us().saturating_sub(since_us) > MAX_BLOCKED_US {
                    offline.cancel(hotplug, hooks);
                    return Err(LateError::Blocked(blocker));
                }
                self.removal = Some(offline);
            }
            Progress::Ready(_) | Progress::Idle => {
                dimms::remove(range, engine).map_err(LateError::Range)?;
                engine.hooks.workload.set_dimm(slot(last), hotmem::PfnRange::EMPTY);
                self.present = last;
                self.blocked_since_us = None;
            }
        }
        Ok(self.present == 0)
    }
}

fn slot(index: usize) -> u32 {
    const { assert!(hotmem_guest::late_memory::MAX_RANGES <= hotmem_guest::limits::MAX_DIMMS) };
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl fmt::Display for LateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LateError::Refused(refusal) => refusal.fmt(f),
            LateError::Range(error) => error.fmt(f),
            LateError::Blocked(blocker) => blocker.fmt(f),
        }
    }
}
