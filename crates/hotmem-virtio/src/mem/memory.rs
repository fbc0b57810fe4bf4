//! The interface of the driver to the kernel's memory manager.

use super::reachable::Reachable;
use super::reason::Reason;
use hotmem::{Pfn, PfnRange};

/// The kernel's side of plugging and unplugging.
///
/// The driver keeps no map of plugged memory: it queries the memory manager. Every range is a
/// multiple of the driver's unit, which is the device's block, or 2 MiB if blocks are smaller. An
/// implementation must not access memory that is not plugged. A range is in transition from the
/// call of a `prepare_…` method that returns it until a call commits or undoes the preparation:
/// `plugged` or `plug_refused`, `unplugged` or `unplug_refused`. At most one range is in transition
/// at any time. Only the memory manager knows it: a driver may end at any moment, for example because
/// its device is reset, and the next driver then [asks](Memory::transition) for the range.
///
/// All methods are called from [`Driver::step`](super::Driver::step), in its caller's context.
pub trait Memory {
    /// Announces the device's region, before any other call. `unit` is the driver's unit in frames,
    /// and `node` the number that the device gives its node, if it does. Returns the part of the
    /// region that can be used; the driver names no other memory of the region in later calls.
    ///
    /// A driver that is started again announces the same region again, which is not an error.
    ///
    /// # Errors
    /// [`Obstacle::Never`] if the region cannot be used, for example because it overlaps existing
    /// memory. The driver then stops, and a new requested size does not start it again. After other
    /// obstacles it tries again.
    fn announce(
        &mut self,
        region: PfnRange,
        unit: u64,
        node: Option<u16>,
    ) -> Result<Reachable, Obstacle>;

    /// Returns the range that is in transition, if any. A driver that starts calls this after
    /// [`announce`](Memory::announce) and [`cancel`](Memory::cancel). It undoes a plug, and adopts
    /// the range later if the device has plugged it. For an unplug it asks the device what it has
    /// unplugged, and commits or undoes that.
    fn transition(&self) -> Option<Transition>;

    /// Divides the range to be unplugged that is in transition at `at`, so that its lower part is
    /// committed or undone before its upper part. Returns `false` if that is not possible. The
    /// driver calls this if a device has unplugged only a part of the range.
    fn divide(&mut self, at: Pfn) -> bool;

    /// Returns the longest run that starts at `from`, lies in `within`, and is either plugged as a
    /// whole or unplugged as a whole. `within` contains `from`.
    fn run_at(&self, from: Pfn, within: PfnRange) -> Run;

    /// Allocates everything that plugging `range` needs, so that [`plugged`](Memory::plugged)
    /// cannot fail. An implementation may prepare only a part of the range: a multiple of `unit`
    /// frames at its start. Returns the range that is prepared.
    ///
    /// The driver also adopts memory by this method: if the device has already plugged memory that
    /// the memory manager does not know, the driver calls this method and then
    /// [`adopted`](Memory::adopted), and sends no request to the device.
    ///
    /// # Errors
    /// The obstacle. Nothing is prepared. After [`Obstacle::Working`] the driver calls again, or
    /// [`cancel`](Memory::cancel)s.
    fn prepare_plug(&mut self, range: PfnRange, unit: u64) -> Result<PfnRange, Obstacle>;

    /// Commits the prepared range, which the device has plugged. Its contents are undefined.
    fn plugged(&mut self, range: PfnRange);

    /// Commits the prepared range, which was plugged before the driver asked for it. It may contain
    /// what an earlier kernel has written.
    fn adopted(&mut self, range: PfnRange) {
        self.plugged(range);
    }

    /// Puts all memory online that is plugged but not online yet. The driver calls this after
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
    /// migrates and unmaps it. The run lies in `unplug.region`, and has at most `unplug.max_frames`
    /// frames, a multiple of `unplug.unit`.
    ///
    /// # Errors
    /// The obstacle. Nothing is prepared. After [`Obstacle::Working`] and [`Obstacle::Later`],
    /// memory may stay isolated: the driver either calls again, possibly with other parameters, or
    /// calls [`cancel`](Memory::cancel). When the requested size is reached, the driver calls
    /// `cancel` as well, although the last call succeeded.
    fn prepare_unplug(&mut self, unplug: Unplug) -> Result<PfnRange, Obstacle>;

    /// Commits the removal of the prepared range, or of the lower part of a
    /// [divided](Memory::divide) range, which the device has unplugged.
    fn unplugged(&mut self, range: PfnRange);

    /// Undoes the preparation of the range, or of the lower part of a [divided](Memory::divide)
    /// range, which the device did not unplug: it may be used again.
    fn unplug_refused(&mut self, range: PfnRange);

    /// Cancels preparations, because the requested size has changed or is reached, the device
    /// failed, or another driver has started. Undoes the work for memory that no `prepare_…` call has returned yet. A range that
    /// was returned stays prepared.
    fn cancel(&mut self) {}
}

/// The parameters of an unplug. All counts are in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unplug {
    /// The region to unplug from.
    pub region: PfnRange,
    /// The number of frames to unplug in all, by this call and by later calls.
    pub total: u64,
    /// The maximal number of frames to unplug by this call.
    pub max_frames: u64,
    /// The smallest part that can be unplugged, aligned to its size.
    pub unit: u64,
}

/// A range in transition: see [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The range is prepared to be plugged.
    Plug(PfnRange),
    /// The range is prepared to be unplugged.
    Unplug(PfnRange),
}

/// A run of memory in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The run.
    pub range: PfnRange,
    /// Whether it is plugged.
    pub plugged: bool,
}

/// The reason why memory could not be announced, prepared or put online. It determines when the
/// driver tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The work is not finished yet. The driver calls again.
    Working,
    /// It is not possible now, for this reason. The driver tries again later.
    Later(Reason),
    /// It is not possible, for this reason. The driver tries again only after the requested size
    /// has changed. If [`Memory::announce`] returns this, the driver stops for good.
    Never(Reason),
}

/// Converts an error of the engine. The result is [`Obstacle::Later`] for most errors, because their
/// causes may end without an action of the device.
impl<T: Into<Reason>> From<T> for Obstacle {
    fn from(reason: T) -> Obstacle {
        let reason = reason.into();
        if reason.is_permanent() { Obstacle::Never(reason) } else { Obstacle::Later(reason) }
    }
}
