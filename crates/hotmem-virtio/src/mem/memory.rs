//! What the driver asks of the kernel's memory manager.

use hotmem::{Pfn, PfnRange};

/// The kernel's side of plugging and unplugging.
///
/// The driver keeps no map of its own: which memory is plugged is a question that it asks here.
/// Every range is a multiple of the driver's unit: the device's block, or 2 MiB where blocks are
/// smaller. Nothing here may touch memory that is not plugged; memory is between two states from
/// `prepare_…` until the method that ends it, and only one range is at any time.
///
/// All methods are called from [`Driver::step`](super::Driver::step), in its caller's context.
pub trait Memory {
    /// Makes the device's region known, before anything else is asked about it.
    ///
    /// A driver that is started again announces the same region again; that is no error.
    ///
    /// # Errors
    /// [`Obstacle::Never`] if the region cannot be taken, for example because it overlaps memory
    /// that exists: the device fails. Other obstacles are tried again.
    fn announce(&mut self, region: PfnRange, node: Option<u16>) -> Result<(), Obstacle>;

    /// Returns the longest run from `from` on that is all plugged or all unplugged, within
    /// `within`, which holds `from`.
    fn run_at(&self, from: Pfn, within: PfnRange) -> Run;

    /// Takes everything that plugging `range` will need, so that [`plugged`](Memory::plugged)
    /// cannot fail. May take it for a part only, at the range's start, and return that part: a
    /// multiple of `unit` frames.
    ///
    /// Memory that is found plugged is taken over in the same way, without a request in between.
    ///
    /// # Errors
    /// Nothing is taken. After [`Obstacle::Working`] the driver calls again, or
    /// [`cancel`](Memory::cancel)s.
    fn prepare_plug(&mut self, range: PfnRange, unit: u64) -> Result<PfnRange, Obstacle>;

    /// The device plugged the prepared range: it may be used. Its contents are undefined.
    fn plugged(&mut self, range: PfnRange);

    /// Brings online what was plugged, as far as it is not yet. The driver calls this after
    /// [`plugged`](Memory::plugged), before it plugs more, and before it says that the device's
    /// size is reached.
    ///
    /// # Errors
    /// Why some of it is not in use. Neither happens before this succeeds.
    fn bring_online(&mut self) -> Result<(), Obstacle> {
        Ok(())
    }

    /// The device did not plug the prepared range: undo the preparation.
    fn plug_refused(&mut self, range: PfnRange);

    /// Makes the highest run of plugged memory that can leave ready to do so: isolated, migrated,
    /// unmapped. It lies in `wanted.region`, and has at most `wanted.at_once` frames, in multiples
    /// of `wanted.unit`.
    ///
    /// # Errors
    /// Nothing is prepared. After [`Obstacle::Working`] the driver calls again, perhaps wanting
    /// something else by then, or [`cancel`](Memory::cancel)s; as it does after the last call that
    /// succeeded.
    fn prepare_unplug(&mut self, wanted: Unplug) -> Result<PfnRange, Obstacle>;

    /// The device unplugged the prepared range: it is gone.
    fn unplugged(&mut self, range: PfnRange);

    /// The device did not unplug the prepared range: it may be used again.
    fn unplug_refused(&mut self, range: PfnRange);

    /// No more is wanted of what was being prepared: the device wants something else, has what it
    /// wants, or failed. Undo what was begun beyond the ranges that were returned, if anything was.
    fn cancel(&mut self) {}
}

/// What is to be unplugged. All counts are frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unplug {
    /// Where.
    pub region: PfnRange,
    /// How much is to go in the end, with this call and those that follow it.
    pub surplus: u64,
    /// How much can go at once.
    pub at_once: u64,
    /// The smallest part that can go, aligned to its size.
    pub unit: u64,
}

/// A run of memory in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The run.
    pub range: PfnRange,
    /// Whether it is plugged.
    pub plugged: bool,
}

/// The reason why memory cannot be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing hinders it, the work is not done yet: call again.
    Working,
    /// Not now, for this reason: worth another try later.
    Later(&'static str),
    /// Not at all, for this reason, until the device wants something else.
    Never(&'static str),
}
