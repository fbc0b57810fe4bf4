//! Calls the control path of a machine: resizes, reports and isolates memory, and times each call.

use super::background::Background;
use super::calls::LongestCalls;
use crate::bench::random::Random;
use crate::hosted::{Hosted, HostedHotplug, ThreadCpus};
use anyhow::{Result, bail};
use hotmem::{
    AllocRequest, Budget, Bytes, Contents, NoHooks, OnlineType, Pfn, PfnRange, Progress, Shrink,
    ShrinkOptions,
    geometry::PAGEBLOCK_FRAMES,
    report::{Reporter, ReporterSettings, Step},
};
use std::{iter, time::Duration};

/// The amount of memory that is plugged and unplugged.
pub(super) const RESIZED_MEMORY: Bytes = Bytes::gib(4);
/// How often the removal of memory in use is tried again before the bench fails. The measured
/// thread frees each of its frames within a second, so a removal succeeds long before.
const MAX_RETRIES: u32 = 10_000_000;
/// The number of huge pages that are allocated and freed before each report, because all other
/// free memory may be reported already.
const HUGE_PAGES_BEFORE_REPORT: usize = 64;

/// A machine, the memory that its control path adds and removes, and the times of the calls.
pub(super) struct Control<'m> {
    machine: &'m Hosted,
    hotplug: HostedHotplug<'m>,
    /// The memory that stays plugged.
    base: PfnRange,
    /// The memory that is plugged and unplugged.
    resized: PfnRange,
    reporter: Option<Reporter<'m, ThreadCpus>>,
    calls: LongestCalls,
    random: Random,
}

impl<'m> Control<'m> {
    /// Boots the machine, and plugs `size` bytes that stay plugged.
    pub(super) fn new(machine: &'m Hosted, size: Bytes) -> Result<Control<'m>> {
        let mut hotplug = machine.boot_without_returning_memory()?;
        let hotplug_range = machine.hotplug_range();
        hotplug.announce(hotplug_range)?;
        let end = hotplug_range.start().number() + size.frames();
        let (base, resized) = hotplug_range.split_at(Pfn::new(end).unwrap_or(hotplug_range.end()));
        hotplug.add(base)?;
        hotplug.online(base, OnlineType::Movable, &mut NoHooks)?;
        let (calls, random) = (LongestCalls::default(), Random::new());
        Ok(Control { machine, hotplug, base, resized, reporter: None, calls, random })
    }

    /// Returns the longest calls.
    pub(super) fn into_calls(self) -> LongestCalls {
        self.calls
    }

    /// Does the background work once. Each call of the control path may handle about `budget`
    /// pageblocks.
    pub(super) fn run(&mut self, background: Background, budget: u64) -> Result<()> {
        if background.includes(Background::Resize) {
            self.plug(budget)?;
            self.unplug(budget)?;
        }
        if background.includes(Background::Reports) {
            self.report()?;
        }
        if background.includes(Background::Isolation) {
            self.isolate(budget);
        }
        Ok(())
    }

    /// Plugs all of `resized`.
    fn plug(&mut self, budget: u64) -> Result<()> {
        let Control { hotplug, resized, calls, .. } = self;
        for part in resized.chunks(budget * PAGEBLOCK_FRAMES as u64) {
            calls.time("add", Some(budget), || hotplug.add(part))?;
            calls.time("online", Some(budget), || {
                hotplug.online(part, OnlineType::Movable, &mut NoHooks)
            })?;
        }
        Ok(())
    }

    /// Unplugs all of `resized`. Memory in use cannot be migrated, so the function waits until the
    /// measured thread has freed its frames of `resized`.
    fn unplug(&mut self, budget: u64) -> Result<()> {
        let Control { hotplug, resized, calls, .. } = self;
        let max_run_frames = budget * PAGEBLOCK_FRAMES as u64;
        let options = || ShrinkOptions { max_run_frames, ..(*resized).into() };
        let mut shrink = Shrink::new(options());
        let mut retries = 0;
        loop {
            let poll = || shrink.poll(hotplug, &mut NoHooks, Budget { pageblocks: budget });
            match calls.time("unplug", Some(budget), poll) {
                Progress::Ready(removal) => {
                    calls.time("remove", Some(budget), || hotplug.commit_remove(removal));
                }
                Progress::Working => {}
                // All of `resized` is unplugged, by this `Shrink` and by earlier ones.
                Progress::Idle => return Ok(()),
                Progress::Pending(blocker) if retries == MAX_RETRIES => {
                    bail!("memory cannot be unplugged: {blocker:?}");
                }
                Progress::Pending(_) => {
                    retries += 1;
                    shrink = Shrink::new(options());
                }
            }
        }
    }

    /// Reports all memory that can be reported, to a host that answers at once.
    fn report(&mut self) -> Result<()> {
        let frames = self.machine.frames();
        let alloc_huge = || frames.alloc(AllocRequest::order(9).movable()).ok();
        drop(iter::from_fn(alloc_huge).take(HUGE_PAGES_BEFORE_REPORT).collect::<Vec<_>>());
        if self.reporter.is_none() {
            let settings = ReporterSettings::EAGER;
            self.reporter = Some(match Reporter::new(frames, settings, Contents::Filled(0)) {
                Ok(reporter) => reporter,
                Err(error) => bail!("the reporter cannot be made: {error:?}"),
            });
        }
        let Some(reporter) = &mut self.reporter else { return Ok(()) };
        loop {
            match self.calls.time("report", None, || reporter.step(Duration::ZERO)) {
                Step::Ready(Ok(batch)) => {
                    self.calls.time("reported", None, || reporter.reported(batch));
                }
                Step::Working => {}
                _ => return Ok(()),
            }
        }
    }

    /// Isolates a random part of the memory that stays plugged, and releases it.
    fn isolate(&mut self, budget: u64) {
        let Control { machine, base, calls, random, .. } = self;
        let parts = || base.chunks(budget * PAGEBLOCK_FRAMES as u64);
        let part = parts().nth(random.index_below(parts().count()));
        let isolate = || part.map(|part| machine.frames().isolate(part));
        // The isolation fails if an allocation is in progress in one of the pageblocks. Then the
        // next call of `isolate` tries another part.
        if let Some(Ok(isolation)) = calls.time("isolate", Some(budget), isolate) {
            calls.time("release", Some(budget), || isolation.release());
        }
    }
}
