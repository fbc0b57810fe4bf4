//! Defines the callbacks by which the kernel agrees to changes of memory, and migrates its own data.
//!
//! All methods are safe to implement: a wrong answer can make memory unusable or lose the kernel's
//! own data, but never break the engine. The engine calls the methods in the context in which the
//! kernel polls a request. The engine has no locks, so the methods may use the frame allocator.

use crate::addr::PfnRange;
use crate::range_error::Veto;
use crate::words::{NodeId, Zone};

/// The kernel's part in putting memory online and taking it offline. The default methods agree to
/// everything and migrate nothing.
///
/// ```
/// use hotmem::{Hooks, Migration, PfnRange, Veto, Zone};
///
/// /// Keeps online memory from going offline for a while.
/// struct Kernel {
///     busy: bool,
/// }
///
/// impl Hooks for Kernel {
///     fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
///         if self.busy { Err(Veto("a dump is being written")) } else { Ok(()) }
///     }
///
///     fn migrate(&mut self, used: PfnRange) -> Migration {
///         // The kernel copies the data to other frames, maps these, and frees `used`.
///         Migration::Moved
///     }
/// }
/// # let _: &mut dyn Hooks = &mut Kernel { busy: true };
/// ```
#[allow(unused_variables, reason = "the default methods do not use their arguments")]
pub trait Hooks {
    /// Decides whether `range` may come online in `zone`.
    ///
    /// # Errors
    /// A veto keeps the range offline. [`online_cancelled`](Self::online_cancelled) is not called
    /// for a range that was vetoed.
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        Ok(())
    }

    /// Tells the kernel that `range`, to which it agreed, stays offline after all. `range` is one
    /// range to which the kernel agreed, or several such ranges that are adjacent.
    fn online_cancelled(&mut self, range: PfnRange) {}

    /// Tells the kernel that `range` is online. The engine also calls this without a preceding
    /// [`going_online`](Self::going_online), when a removal is abandoned or a shrink undone.
    fn onlined(&mut self, range: PfnRange) {}

    /// Tells the kernel that a node has its first memory.
    fn node_appeared(&mut self, node: NodeId) {}

    /// Tells the kernel that a node has lost its last memory.
    fn node_vanished(&mut self, node: NodeId) {}

    /// Decides whether `range`, which is isolated, may go offline.
    ///
    /// # Errors
    /// A veto keeps the range online. [`offline_cancelled`](Self::offline_cancelled) is not called
    /// for a range that was vetoed.
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        Ok(())
    }

    /// Tells the kernel that `range`, to which it agreed, stays online after all. `range` is whole
    /// pageblocks: one range to which the kernel agreed, several such ranges that are adjacent, or
    /// a part of these. Not called for a request that is dropped.
    ///
    /// The unit that a shrink has isolated while it was pending may be in use again before this call:
    /// see [`ShrinkOptions::is_persistent`](crate::ShrinkOptions::is_persistent).
    fn offline_cancelled(&mut self, range: PfnRange) {}

    /// Tells the kernel that `range` is offline. What `range` can be is described at
    /// [`offline_cancelled`](Self::offline_cancelled).
    fn offlined(&mut self, range: PfnRange) {}

    /// Frees the frames of `within` that the kernel can do without. The hook must not allocate.
    ///
    /// `within` is a pageblock that is partly or wholly in use and is to go offline. The engine
    /// calls this only while there is not enough free memory elsewhere for all frames in use. So a
    /// kernel that drops its caches here, and not in [`migrate`](Self::migrate), keeps as many of
    /// them as it can. The pageblock may or may not be isolated during this call: if it is not, frames that are
    /// freed here can be allocated again. If there is enough free memory after the calls, the engine migrates the
    /// other frames; if not, they stay in use.
    fn discard(&mut self, within: PfnRange) {}

    /// Moves the kernel's data in `used` to other frames and frees `used`. `used` is a run of
    /// allocated frames within one pageblock; they may belong to several allocations, and may be a
    /// part of one: no poisoned frame is among them. The engine checks itself whether the frames were freed. The result of this call only says what to do
    /// next.
    ///
    /// The engine calls this only if there is enough free memory elsewhere for all frames in use of
    /// the range. A kernel that only frees, and moves nothing ([`Migration::Freed`]), implements
    /// [`discard`](Self::discard) as well, which is called if there is not enough. Request the new
    /// frames with [`NodeChoice::Avoiding`](crate::NodeChoice::Avoiding) and [the
    /// node](crate::Frames::node_of) of `used`, which is then tried last: more memory of that node
    /// may be about to go offline.
    fn migrate(&mut self, used: PfnRange) -> Migration {
        Migration::Unmovable("this kernel does not migrate")
    }
}

/// A kernel that agrees to everything and moves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// The result of a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Migration {
    /// Some or all of the frames were moved and freed: check the range again.
    Moved,
    /// The owner freed the frames, either in this call or on its own before the call. An owner that
    /// frees frames and moves nothing needs no free memory elsewhere, so it should free them in
    /// [`Hooks::discard`] instead.
    Freed,
    /// The frames cannot be moved now; another try may succeed later.
    Retry,
    /// The frames can never be moved, for this reason.
    Unmovable(&'static str),
}
