//! Turns persistent memory into ordinary RAM and back, as `daxctl reconfigure-device` does.

use super::{BindError, Bound, How};
use crate::kernel::engine::{BUDGET, Engine};
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::{AddError, Blocker, OnlineType, PfnRange, Progress, RangeError};

/// Device memory that is used as RAM.
pub(super) struct Ram {
    region: PfnRange,
    how: How,
    kind: OnlineType,
}

/// The reason why memory was not reconfigured.
pub(super) enum ReconfigureError {
    /// The engine refuses to turn it into RAM.
    ToRam(AddError),
    /// The engine refuses to take it offline.
    Offline(RangeError),
    /// Frames in it cannot be migrated.
    Blocked(Blocker),
    /// The engine refuses to turn it into device memory.
    ToDevice(RangeError),
    /// It is device memory again, but cannot be described.
    Bind(BindError),
}

impl Bound {
    /// Unmaps the device's descriptors, and puts the memory online as RAM.
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
    /// Takes the memory offline, all of it or nothing, and maps descriptors of device memory again,
    /// which must still be written.
    pub(super) fn into_device(self, engine: &mut Engine) -> Result<Bound, ReconfigureError> {
        let Engine { hotplug, hooks } = engine;
        if self.kind != OnlineType::Offline {
            let mut offline = hotplug.offline(self.region).map_err(ReconfigureError::Offline)?;
            loop {
                match offline.poll(hotplug, hooks, BUDGET) {
                    Progress::Working => WATCHDOG.progress(),
                    Progress::Ready(_) | Progress::Idle => break,
                    Progress::Pending(blocker) => {
                        // It began on this machine, so this cannot fail.
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
