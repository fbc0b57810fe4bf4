//! Defines the calls that the engine makes to the kernel besides its [mapping](crate::Mapping): the
//! kernel agrees to changes and migrates its own data.
//!
//! All methods are safe to implement: a wrong answer can make memory unusable or lose the kernel's
//! own data, but never break the engine. The engine calls them in the context in which the kernel
//! polls a request, with no lock of the engine held; they may use the frame allocator.

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
pub trait Hooks {
    /// Decides whether `range` may come online in `zone`.
    ///
    /// # Errors
    /// A veto keeps the range offline; [`online_cancelled`](Self::online_cancelled) is not called
    /// then.
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        let _ = (range, zone);
        Ok(())
    }

    /// Tells the kernel that `range`, to which it agreed, stays offline after all. The ranges that
    /// are cancelled are exactly those to which the kernel agreed.
    fn online_cancelled(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Tells the kernel that `range` is online. The engine also calls this without a preceding
    /// [`going_online`](Self::going_online), when a removal is abandoned or a shrink undone.
    fn onlined(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Tells the kernel that a node has its first memory.
    fn node_appeared(&mut self, node: NodeId) {
        let _ = node;
    }

    /// Tells the kernel that a node has lost its last memory.
    fn node_vanished(&mut self, node: NodeId) {
        let _ = node;
    }

    /// Decides whether `range`, which is isolated, may go offline.
    ///
    /// # Errors
    /// A veto keeps the range online; [`offline_cancelled`](Self::offline_cancelled) is not called
    /// then.
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        let _ = range;
        Ok(())
    }

    /// Tells the kernel that `range`, to which it agreed, stays online after all. The ranges that
    /// are cancelled are exactly those to which the kernel agreed, though one call may cancel
    /// several.
    fn offline_cancelled(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Tells the kernel that `range` is offline.
    fn offlined(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Frees what the kernel can do without in `within`, and must not allocate. `within` is a
    /// pageblock that is partly or wholly in use and is to go offline, and there is not enough free
    /// memory elsewhere for all frames in use. The engine isolates nothing for this call. If there
    /// is still not enough free memory after it, the other frames stay in use; otherwise the engine
    /// [migrates](Self::migrate) them. A kernel that drops its caches only here, and never moves
    /// them, loses no more of them than necessary.
    fn discard(&mut self, within: PfnRange) {
        let _ = within;
    }

    /// Moves the kernel's data in `used` to other frames and frees `used`. `used` is a run of
    /// allocated frames within one pageblock, which may belong to several allocations. The block
    /// states decide whether the call succeeded; its result only says what to do next.
    ///
    /// The engine does not call this while there is not enough free memory elsewhere for all frames
    /// of the range that are in use. A kernel that only frees, and moves nothing
    /// ([`Migration::Gone`]), implements [`discard`](Self::discard), which is called in that case.
    /// The new frames should be requested as [leaving](crate::NodeChoice::Leaving) [the
    /// node](crate::Frames::node_of) of `used`, because more memory of that node may be about to go
    /// offline.
    fn migrate(&mut self, used: PfnRange) -> Migration {
        let _ = used;
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
    /// The owner freed the frames, for this call or meanwhile. An owner that frees for this call
    /// needs no free memory elsewhere, and should free in [`Hooks::discard`] instead.
    Gone,
    /// The frames cannot be moved now; another try may succeed later.
    Retry,
    /// The frames can never be moved, for this reason.
    Unmovable(&'static str),
}
