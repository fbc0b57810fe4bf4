//! Turns a device's memory into ordinary RAM and back, as `daxctl reconfigure-device` does.

use super::{BindError, BindParameters, BoundMemory};
use crate::kernel::engine::{BUDGET, Engine};
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::{AddError, Blocker, OnlineType, PfnRange, Progress, RangeError};

/// Device memory that is used as RAM.
pub(in crate::kernel) struct Ram {
    region: PfnRange,
    parameters: BindParameters,
    kind: OnlineType,
}

/// The reason why memory was not reconfigured.
pub(in crate::kernel) enum ReconfigureError {
    /// The engine refuses to turn the memory into RAM.
    ToRam(AddError),
    /// The engine refuses to take the memory offline.
    Offline(RangeError),
    /// Frames of the memory cannot be migrated.
    Blocked(Blocker),
    /// The engine refuses to turn the memory into device memory.
    ToDevice(RangeError),
    /// The memory is device memory again, and its descriptors cannot be mapped.
    Bind(BindError),
}

impl BoundMemory {
    /// Unmaps the device's descriptors, and puts the memory online as RAM.
    pub(in crate::kernel) fn into_ram(
        self,
        engine: &mut Engine,
        kind: OnlineType,
    ) -> Result<Ram, ReconfigureError> {
        let BoundMemory { region, parameters, .. } = self;
        self.unmap_descriptors(engine.space());
        let Engine { hotplug, hooks } = engine;
        // SAFETY: `self` was the only user of the device memory.
        unsafe { hotplug.device_to_ram(region, kind, hooks) }.map_err(ReconfigureError::ToRam)?;
        Ok(Ram { region, parameters, kind })
    }
}

impl Ram {
    /// Takes all of the memory offline, and changes it to device memory. Then maps the descriptors
    /// of device memory again, which the caller must [write](BoundMemory::describe). If the memory
    /// cannot be taken offline, it stays RAM.
    pub(in crate::kernel) fn into_device(
        self,
        engine: &mut Engine,
    ) -> Result<BoundMemory, ReconfigureError> {
        let Engine { hotplug, hooks } = engine;
        if self.kind != OnlineType::Offline {
            let mut offline = hotplug.offline(self.region).map_err(ReconfigureError::Offline)?;
            loop {
                match offline.poll(hotplug, hooks, BUDGET) {
                    Progress::Working => WATCHDOG.progress(),
                    Progress::Ready(_) | Progress::Idle => break,
                    Progress::Pending(blocker) => {
                        offline.cancel(hotplug, hooks);
                        return Err(ReconfigureError::Blocked(blocker));
                    }
                }
            }
        }
        hotplug.ram_to_device(self.region).map_err(ReconfigureError::ToDevice)?;
        BoundMemory::of_device(engine.space(), self.region, self.parameters)
            .map_err(ReconfigureError::Bind)
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
