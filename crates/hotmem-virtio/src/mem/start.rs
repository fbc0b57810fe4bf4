//! The driver's start: its region becomes known, and what is plugged there already is dealt with.

use super::driver::{Activity, Driver, Halt, Purpose};
use super::memory::{Memory, Obstacle};
use super::request::Request;
use super::status::{Failure, Pending, Status};
use super::sync::Sync;
use hotmem::Bytes;

/// What becomes of memory that is plugged when the driver starts and that its memory manager does
/// not know: another kernel had it before (kexec), or the VMM plugged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// It is taken over, as far as the device still wants it, and unplugged otherwise. STATE requests
    /// find out which blocks are plugged.
    #[default]
    Adopt,
    /// The device unplugs all of it on one UNPLUG_ALL request, and what it wants is plugged anew. A
    /// device that answers ERROR is asked block by block instead, as for [`Adopt`](Self::Adopt).
    UnplugAll,
}

impl Driver {
    /// Sets what becomes of memory that is found plugged at the start; to be called before the first
    /// step. A driver that does not call this adopts it.
    pub fn set_leftover(&mut self, leftover: Leftover) {
        self.leftover = leftover;
    }

    pub(super) fn announce<M: Memory>(
        &mut self,
        memory: &mut M,
    ) -> Result<(Request, Purpose), Halt> {
        let managed = self.config.managed();
        memory.announce(managed, self.config.node()).map_err(|obstacle| match obstacle {
            Obstacle::Working => Halt::Again,
            Obstacle::Later(why) => Halt::Later(Pending::Memory(why)),
            Obstacle::Never(why) => Halt::Fail(Failure::Region(why)),
        })?;
        let run = self.run_at(managed.start(), managed, memory)?;
        // Plugged memory that is in use belongs to a driver that was here before, on this machine.
        let unused = !run.plugged && run.range == managed;
        if unused && self.config.plugged() == Bytes::ZERO {
            self.activity = Activity::Resizing;
            self.status = Status::Resizing;
        } else if unused && self.leftover == Leftover::UnplugAll {
            self.activity = Activity::Clearing;
        } else {
            self.start_sync(Sync::of_device(&self.config));
        }
        Err(Halt::Again)
    }
}
