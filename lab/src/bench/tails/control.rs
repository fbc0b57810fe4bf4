//! The work of the control path: resizing, reporting and isolating.

use super::beside::Beside;
use super::calls::Calls;
use crate::bench::random::Random;
use crate::hosted::{Hosted, HostedHotplug, Threads};
use anyhow::{Result, bail};
use hotmem::{
    AllocRequest, Budget, Bytes, NoHooks, OnlineType, Pfn, PfnRange, Progress, Shrink,
    ShrinkOptions,
    geometry::PAGEBLOCK_FRAMES,
    report::{Contents, Reporter, Settings, Step},
};
use std::{iter, time::Duration};

/// The memory that is plugged and unplugged.
pub(super) const EXTRA: Bytes = Bytes::gib(4);
/// How often the removal of memory in use is tried again. The traffic frees any frame within a
/// second.
const ATTEMPTS: u32 = 10_000_000;
/// The number of huge pages that are allocated and freed before each report, so that there is
/// memory to report.
const USED: usize = 64;

/// The control path of a machine.
pub(super) struct Control<'m> {
    machine: &'m Hosted,
    hotplug: HostedHotplug<'m>,
    /// The memory that stays plugged.
    base: PfnRange,
    extra: PfnRange,
    reporter: Option<Reporter<'m, Threads>>,
    calls: Calls,
    random: Random,
}

impl<'m> Control<'m> {
    /// Boots the machine, and plugs `size` bytes.
    pub(super) fn new(machine: &'m Hosted, size: Bytes) -> Result<Control<'m>> {
        let mut hotplug = machine.boot_keeping()?;
        let room = machine.room();
        hotplug.announce(room)?;
        let end = room.start().number() + size.frames();
        let (base, extra) = room.split_at(Pfn::new(end).unwrap_or(room.end()));
        hotplug.add(base)?;
        hotplug.online(base, OnlineType::Movable, &mut NoHooks)?;
        let (calls, random) = (Calls::default(), Random::new());
        Ok(Control { machine, hotplug, base, extra, reporter: None, calls, random })
    }

    pub(super) fn into_calls(self) -> Calls {
        self.calls
    }

    /// Does some work, each call of which may do about `budget` pageblocks.
    pub(super) fn work(&mut self, what: Beside, budget: u64) -> Result<()> {
        if what.has(Beside::Resize) {
            self.plug(budget)?;
            self.unplug(budget)?;
        }
        if what.has(Beside::Reports) {
            self.report()?;
        }
        if what.has(Beside::Isolation) {
            self.isolate(budget);
        }
        Ok(())
    }

    fn plug(&mut self, budget: u64) -> Result<()> {
        let Control { hotplug, extra, calls, .. } = self;
        for part in extra.chunks(budget * PAGEBLOCK_FRAMES as u64) {
            calls.time("add", Some(budget), || hotplug.add(part))?;
            calls.time("online", Some(budget), || {
                hotplug.online(part, OnlineType::Movable, &mut NoHooks)
            })?;
        }
        Ok(())
    }

    /// Unplugs all of it again. Memory in use cannot be migrated, so this waits until the traffic
    /// has freed its frames.
    fn unplug(&mut self, budget: u64) -> Result<()> {
        let Control { hotplug, extra, calls, .. } = self;
        let largest = budget * PAGEBLOCK_FRAMES as u64;
        let options = || ShrinkOptions { largest, ..(*extra).into() };
        let mut shrink = Shrink::new(options());
        let mut attempts = 0;
        loop {
            let poll = || shrink.poll(hotplug, &mut NoHooks, Budget { pageblocks: budget });
            match calls.time("unplug", Some(budget), poll) {
                Progress::Ready(removal) => {
                    let commit = || hotplug.commit_remove(removal);
                    if calls.time("remove", Some(budget), commit).is_err() {
                        bail!("a removal is not this machine's");
                    }
                }
                Progress::Working => {}
                // Nothing is in the way: what is left was unplugged by an earlier attempt.
                Progress::Idle => return Ok(()),
                Progress::Pending(blocker) if attempts == ATTEMPTS => {
                    bail!("memory cannot be unplugged: {blocker:?}");
                }
                Progress::Pending(_) => {
                    attempts += 1;
                    shrink = Shrink::new(options());
                }
            }
        }
    }

    /// Reports all memory that can be reported, to a host that answers at once.
    fn report(&mut self) -> Result<()> {
        let frames = self.machine.frames();
        let huge = || frames.alloc(AllocRequest::order(9).movable()).ok();
        drop(iter::from_fn(huge).take(USED).collect::<Vec<_>>());
        if self.reporter.is_none() {
            let eager = Settings::EAGER;
            self.reporter = Some(match Reporter::new(frames, eager, Contents::Filled(0)) {
                Ok(reporter) => reporter,
                Err(error) => bail!("no reporter: {error:?}"),
            });
        }
        let Some(reporter) = &mut self.reporter else { return Ok(()) };
        loop {
            match self.calls.time("report", None, || reporter.step(Duration::ZERO)) {
                Step::Ready(Ok(batch)) => {
                    let reported = || reporter.reported(batch).is_ok();
                    if !self.calls.time("reported", None, reported) {
                        bail!("a batch is not this machine's");
                    }
                }
                Step::Working => {}
                _ => return Ok(()),
            }
        }
    }

    /// Isolates memory at a random place of the memory that stays plugged, and releases it.
    fn isolate(&mut self, budget: u64) {
        let Control { machine, base, calls, random, .. } = self;
        let parts = || base.chunks(budget * PAGEBLOCK_FRAMES as u64);
        let part = parts().nth(random.place(parts().count()));
        let isolate = || part.map(|part| machine.frames().isolate(part));
        // A pageblock may be in the middle of an allocation. The next call then tries another
        // place.
        if let Some(Ok(isolation)) = calls.time("isolate", Some(budget), isolate) {
            calls.time("release", Some(budget), || isolation.release());
        }
    }
}
