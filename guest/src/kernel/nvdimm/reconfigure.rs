//! Persistent memory as ordinary RAM, and back, as `daxctl reconfigure-device` does.

use super::{BindError, Bound, How};
use crate::kernel::engine::{BUDGET, Engine};
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::{Blocker, DeviceError, OfflineError, OnlineType, PfnRange, Progress, RemoveError};

/// A device's memory that is RAM for a while.
pub(super) struct Ram {
    region: PfnRange,
    how: How,
    kind: OnlineType,
}

/// The reason why it stays what it is.
pub(super) enum ReconfigureError {
    /// The engine does not take it.
    ToRam(DeviceError),
    /// It was never online.
    Offline(OfflineError),
    /// Something in it cannot be moved.
    Blocked(Blocker),
    /// The engine does not let it go.
    ToDevice(RemoveError),
    /// It is the device's, but cannot be described.
    Bind(BindError),
}

impl Bound {
    /// Takes the descriptors away, and puts the memory online.
    pub(super) fn into_ram(
        self,
        engine: &mut Engine,
        kind: OnlineType,
    ) -> Result<Ram, ReconfigureError> {
        let Bound { region, how, .. } = self;
        self.forget(engine.space());
        let Engine { hotplug, hooks } = engine;
        // SAFETY: `self` was the only one to use it.
        unsafe { hotplug.device_to_ram(region, kind, hooks) }.map_err(ReconfigureError::ToRam)?;
        Ok(Ram { region, how, kind })
    }
}

impl Ram {
    /// Takes the memory offline, all of it or nothing, and gives it descriptors of a device's
    /// again, which are still to be written.
    pub(super) fn into_device(self, engine: &mut Engine) -> Result<Bound, ReconfigureError> {
        let Engine { hotplug, hooks } = engine;
        if self.kind != OnlineType::Offline {
            let mut offline = hotplug.offline(self.region).map_err(ReconfigureError::Offline)?;
            loop {
                match offline.poll(hotplug, hooks, BUDGET) {
                    Progress::Working => WATCHDOG.progress(),
                    Progress::Done(_) => break,
                    Progress::Pending(blocker) => {
                        // Begun on this machine, so this cannot fail.
                        let _ = offline.cancel(hotplug, hooks);
                        return Err(ReconfigureError::Blocked(blocker));
                    }
                }
            }
        }
        hotplug.ram_to_device(self.region).map_err(ReconfigureError::ToDevice)?;
        Bound::of_device(engine.space(), self.region, self.how).map_err(ReconfigureError::Bind)
    }
}

impl fmt::Display for ReconfigureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReconfigureError::ToRam(error) => error.fmt(f),
            ReconfigureError::Offline(error) => error.fmt(f),
            ReconfigureError::Blocked(blocker) => blocker.fmt(f),
            ReconfigureError::ToDevice(error) => error.fmt(f),
            ReconfigureError::Bind(error) => error.fmt(f),
        }
    }
}
