//! What the engine asks of a kernel besides its [mapping](crate::Mapping): agreement, and moving
//! the kernel's own data.
//!
//! Everything here is safe to implement: a wrong answer can make memory unusable or lose the
//! kernel's own data, but never break the engine. All of it is called by requests, from whatever
//! context the kernel polls them in, with no lock of the engine held; the frame allocator may be
//! used from within.

use crate::addr::PfnRange;
use crate::words::{NodeId, Zone};
use core::fmt;

/// A kernel's part in putting memory online and taking it offline. The defaults agree to
/// everything and move nothing.
///
/// ```
/// use hotmem::{Hooks, Migration, PfnRange, Veto, Zone};
///
/// /// Keeps what is online from leaving for a while.
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
///         // What lies there is copied elsewhere, mapped there, and `used` is freed.
///         Migration::Moved
///     }
/// }
/// # let _: &mut dyn Hooks = &mut Kernel { busy: true };
/// ```
pub trait Hooks {
    /// `range` is about to come online in `zone`.
    ///
    /// # Errors
    /// A veto refuses it; [`online_cancelled`](Self::online_cancelled) is not called then.
    fn going_online(&mut self, range: PfnRange, zone: Zone) -> Result<(), Veto> {
        let _ = (range, zone);
        Ok(())
    }

    /// `range` stays offline after all. What is cancelled is exactly what agreed.
    fn online_cancelled(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// `range` is online. Also called without a preceding [`going_online`](Self::going_online),
    /// when a removal is rolled back.
    fn onlined(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// A node has its first memory.
    fn node_appeared(&mut self, node: NodeId) {
        let _ = node;
    }

    /// A node has lost its last memory.
    fn node_vanished(&mut self, node: NodeId) {
        let _ = node;
    }

    /// `range` is isolated and about to go offline.
    ///
    /// # Errors
    /// A veto refuses it; [`offline_cancelled`](Self::offline_cancelled) is not called then.
    fn going_offline(&mut self, range: PfnRange) -> Result<(), Veto> {
        let _ = range;
        Ok(())
    }

    /// `range` stays online after all. What is cancelled is exactly what agreed, though several
    /// ranges may be cancelled as one.
    fn offline_cancelled(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// `range` is offline.
    fn offlined(&mut self, range: PfnRange) {
        let _ = range;
    }

    /// Frees what the kernel can do without in `within`, a pageblock of which something is in use:
    /// it is to go offline, and there is no room elsewhere for all that lives there. To be done
    /// without allocating. Nothing is isolated for this, so that what else lives there stays in use
    /// if there is still no room; otherwise it is [migrated](Self::migrate) then. A kernel whose
    /// caches can only be dropped here, and never moved, loses no more than is missing.
    fn discard(&mut self, within: PfnRange) {
        let _ = within;
    }

    /// Moves what the kernel has in these frames somewhere else and frees them. `used` is a run of
    /// allocated frames within one pageblock, which may belong to several allocations. The block
    /// states decide whether it worked; the answer only says what to do next.
    ///
    /// It is not called while there is no room elsewhere for all that lives in the range: a kernel
    /// that frees what it is asked for and moves nothing ([`Migration::Gone`]) implements
    /// [`discard`](Self::discard), which is called then. What belongs where it goes is
    /// best asked for as [leaving](crate::AllocRequest::leaving) [its
    /// node](crate::Frames::node_of), more of which may be about to go.
    fn migrate(&mut self, used: PfnRange) -> Migration {
        let _ = used;
        Migration::Pinned("this kernel does not migrate")
    }
}

/// A kernel that agrees to everything and moves nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {}

/// A veto against going offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Veto(pub &'static str);

/// What became of frames that were to be migrated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Migration {
    /// Moved and freed, all or a part: look again.
    Moved,
    /// Freed by their owner, meanwhile or for this. An owner that frees for this needs no room
    /// elsewhere, and says so by [`Hooks::discard`].
    Gone,
    /// Not now; it may work later.
    Retry,
    /// Never, and why.
    Pinned(&'static str),
}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
