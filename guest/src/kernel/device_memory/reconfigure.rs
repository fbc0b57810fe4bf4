//! Turns a device's memory into ordinary RAM and back, as `daxctl reconfigure-device` does.

use super::{BindError, BindParameters, BoundMemory};
use crate::kernel::engine::{BUDGET, Engine};
use crate::kernel::fatal::must;
use crate::kernel::progress::WATCHDOG;
use core::fmt;
use hotmem::{AddError, Blocker, OnlineType, PfnRange, Progress, RangeError};

/// Device memory that is used as RAM.
pub(in crate::kernel) struct Ram {
    region: PfnRange,
    parameters: BindParameters,
    kind: OnlineType,
}

/// Memory that was not reconfigured.
pub(in crate::kernel) struct Unchanged<T> {
    /// The memory. RAM is offline if it was taken offline before the failure.
    pub(in crate::kernel) memory: T,
    /// Why.
    pub(in crate::kernel) why: ReconfigureError,
}

/// The reason why memory was not reconfigured.
pub(in crate::kernel) enum ReconfigureError {
    /// The engine refuses to turn the memory into RAM.
    ToRam(AddError),
    /// The engine refuses to put the memory online.
    Online(RangeError),
    /// The engine refuses to take the memory offline.
    Offline(RangeError),
    /// Frames of the memory cannot be migrated.
    Blocked(Blocker),
    /// The engine refuses to turn the memory into device memory.
    ToDevice(RangeError),
    /// The descriptors of device memory cannot be mapped.
    Bind(BindError),
}

impl BoundMemory {
    /// Unmaps the device's descriptors, and puts the memory online as RAM.
    #[expect(
        clippy::result_large_err,
        reason = "the memory must not be lost, and there is no heap"
    )]
    pub(in crate::kernel) fn into_ram(
        self,
        engine: &mut Engine,
        kind: OnlineType,
    ) -> Result<Ram, Unchanged<BoundMemory>> {
        let BoundMemory { region, parameters, .. } = self;
        self.unmap_descriptors(engine.space());
        let Engine { hotplug, hooks } = engine;
        // SAFETY: `self` was the only user of the device memory.
        match unsafe { hotplug.device_to_ram(region, kind, hooks) } {
            Ok(()) => Ok(Ram { region, parameters, kind }),
            Err(error) => {
                // The descriptors were mapped a moment ago.
                let bound = BoundMemory::of_device(engine.space(), region, parameters);
                let memory = must("device memory", bound);
                must("device memory", memory.describe());
                Err(Unchanged { memory, why: ReconfigureError::ToRam(error) })
            }
        }
    }
}

impl Ram {
    /// Returns how the memory is online.
    pub(in crate::kernel) fn kind(&self) -> OnlineType {
        self.kind
    }

    /// Puts offline memory online.
    pub(in crate::kernel) fn put_online(
        &mut self,
        engine: &mut Engine,
        kind: OnlineType,
    ) -> Result<(), ReconfigureError> {
        let Engine { hotplug, hooks } = engine;
        hotplug.online(self.region, kind, hooks).map_err(ReconfigureError::Online)?;
        self.kind = kind;
        Ok(())
    }

    /// Takes all of the memory offline. Does nothing if it is offline.
    pub(in crate::kernel) fn take_offline(
        &mut self,
        engine: &mut Engine,
    ) -> Result<(), ReconfigureError> {
        if self.kind == OnlineType::Offline {
            return Ok(());
        }
        let Engine { hotplug, hooks } = engine;
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
        self.kind = OnlineType::Offline;
        Ok(())
    }

    /// Takes all of the memory offline, and changes it to device memory. Then maps the descriptors
    /// of device memory again, which the caller must [write](BoundMemory::describe). If that fails, the
    /// memory stays RAM.
    pub(in crate::kernel) fn into_device(
        mut self,
        engine: &mut Engine,
    ) -> Result<BoundMemory, Unchanged<Ram>> {
        if let Err(why) = self.take_offline(engine) {
            return Err(Unchanged { memory: self, why });
        }
        if let Err(error) = engine.hotplug.ram_to_device(self.region) {
            return Err(Unchanged { memory: self, why: ReconfigureError::ToDevice(error) });
        }
        BoundMemory::of_device(engine.space(), self.region, self.parameters).map_err(|error| {
            let Engine { hotplug, hooks } = engine;
            // SAFETY: nothing has used the device memory.
            let ram = unsafe { hotplug.device_to_ram(self.region, OnlineType::Offline, hooks) };
            must("device memory", ram.map_err(ReconfigureError::ToRam));
            Unchanged { memory: self, why: ReconfigureError::Bind(error) }
        })
    }
}

impl<T> fmt::Display for Unchanged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(f)
    }
}

impl fmt::Display for ReconfigureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReconfigureError::ToRam(error) => error.fmt(f),
            ReconfigureError::Online(error) | ReconfigureError::Offline(error) => error.fmt(f),
            ReconfigureError::Blocked(blocker) => blocker.fmt(f),
            ReconfigureError::ToDevice(error) => error.fmt(f),
            ReconfigureError::Bind(error) => error.fmt(f),
        }
    }
}
