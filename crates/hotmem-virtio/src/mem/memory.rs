//! The interface of the driver to the kernel's memory manager.

use hotmem::{Pfn, PfnRange};

/// The kernel's side of plugging and unplugging.
///
/// The driver keeps no map of plugged memory: it queries the memory manager. Every range is a
/// multiple of the driver's unit, which is the device's block, or 2 MiB if blocks are smaller. An
/// implementation must not access memory that is not plugged. A range is in transition from a call
/// of a `prepare_…` method until the method that ends it; at most one range is in transition at any
/// time.
///
/// All methods are called from [`Driver::step`](super::Driver::step), in its caller's context.
pub trait Memory {
    /// Announces the device's region, before any other call.
    ///
    /// A driver that is started again announces the same region again, which is not an error.
    ///
    /// # Errors
    /// [`Obstacle::Never`] if the region cannot be used, for example because it overlaps existing
    /// memory: the driver then stops. After other obstacles it tries again.
    fn announce(&mut self, region: PfnRange, node: Option<u16>) -> Result<(), Obstacle>;

    /// Returns the longest run from `from` on, within `within`, that is all plugged or all
    /// unplugged. `within` contains `from`.
    fn run_at(&self, from: Pfn, within: PfnRange) -> Run;

    /// Allocates everything that plugging `range` needs, so that [`plugged`](Memory::plugged)
    /// cannot fail. It may do so for a part at the range's start only, a multiple of `unit` frames.
    /// Returns the part.
    ///
    /// Memory that is already plugged is adopted in the same way, without a request in between.
    ///
    /// # Errors
    /// The obstacle. Nothing is prepared. After [`Obstacle::Working`] the driver calls again, or
    /// [`cancel`](Memory::cancel)s.
    fn prepare_plug(&mut self, range: PfnRange, unit: u64) -> Result<PfnRange, Obstacle>;

    /// Commits the prepared range, which the device has plugged. Its contents are undefined.
    fn plugged(&mut self, range: PfnRange);

    /// Puts plugged memory online that is not online yet. The driver calls this after
    /// [`plugged`](Memory::plugged), before it plugs more, and before it reports that the requested
    /// size is reached.
    ///
    /// # Errors
    /// The reason why some of it is not online. The driver does not plug more or report success
    /// before this call succeeds.
    fn bring_online(&mut self) -> Result<(), Obstacle> {
        Ok(())
    }

    /// Undoes the preparation of the range, which the device did not plug.
    fn plug_refused(&mut self, range: PfnRange);

    /// Prepares the removal of the highest run of plugged memory that can be removed: isolates,
    /// migrates and unmaps it. The run lies in `wanted.region`, and has at most `wanted.at_once`
    /// frames, a multiple of `wanted.unit`.
    ///
    /// # Errors
    /// The obstacle. Nothing is prepared. After [`Obstacle::Working`] and [`Obstacle::Later`] the
    /// driver calls again, possibly with other parameters, or [`cancel`](Memory::cancel)s, so that
    /// memory may stay isolated until then. It also cancels after the last successful call.
    fn prepare_unplug(&mut self, wanted: Unplug) -> Result<PfnRange, Obstacle>;

    /// Commits the removal of the prepared range, which the device has unplugged.
    fn unplugged(&mut self, range: PfnRange);

    /// Undoes the preparation of the range, which the device did not unplug: it may be used again.
    fn unplug_refused(&mut self, range: PfnRange);

    /// Cancels preparations, because the requested size has changed or is reached, or the device
    /// failed. Undoes all work beyond the ranges that were returned.
    fn cancel(&mut self) {}
}

/// The parameters of an unplug. All counts are in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unplug {
    /// The region to unplug from.
    pub region: PfnRange,
    /// The total to unplug, by this call and those that follow.
    pub surplus: u64,
    /// The maximum for one call.
    pub at_once: u64,
    /// The smallest part that can be unplugged, aligned to its size.
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
    /// The work is not finished yet: call again.
    Working,
    /// It is not possible now, for this reason: try again later.
    Later(&'static str),
    /// It is not possible, for this reason, until the requested size changes.
    Never(&'static str),
}
