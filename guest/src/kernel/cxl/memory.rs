//! Memory of CXL devices, which is device memory or RAM.

use super::error::CxlError;
use crate::arch::LAYOUT;
use crate::kernel::device_memory::{
    BindParameters, BoundMemory, Ram, ReconfigureError, Unchanged, check,
};
use crate::kernel::engine::Engine;
use crate::kernel::fatal::must;
use core::fmt;
use hotmem::{Announce, NodeId, OnlineType, PfnRange};

/// Memory of one device, or of several whose addresses alternate.
pub(crate) struct CxlMemory {
    pub(crate) range: PfnRange,
    pub(crate) node: NodeId,
    seed: u64,
    /// `None` only while the memory is being changed.
    mode: Option<Mode>,
}

enum Mode {
    Device(BoundMemory),
    Ram(Ram),
}

/// The reason why memory was not changed.
pub(crate) enum ChangeError {
    /// There is no memory with this number.
    NoMemory,
    /// The memory is device memory already.
    IsDevice,
    /// The memory is online already.
    IsOnline,
    /// The memory is online, and was not to be taken offline.
    Online,
    /// The engine refuses the change, or the memory is in use.
    Reconfigure(ReconfigureError),
}

impl CxlMemory {
    /// Announces memory that addresses are routed to as memory of `node`, and binds it as device memory.
    #[inline(never)]
    pub(super) fn bind(
        range: PfnRange,
        node: NodeId,
        parameters: BindParameters,
        seed: u64,
        engine: &mut Engine,
    ) -> Result<Self, CxlError> {
        if range.end().phys_addr() > LAYOUT.direct_map.bytes().0 {
            return Err(CxlError::BeyondDirectMap(range));
        }
        let region = engine.hotplug.announce(Announce { node, ..range.into() })?;
        let bound =
            BoundMemory::bind(engine, range, parameters).and_then(|bound| match bound.describe() {
                Ok(_) => Ok(bound),
                Err(error) => {
                    must("CXL", bound.unbind(engine));
                    Err(error)
                }
            });
        match bound {
            Ok(bound) => {
                check::write_data(&bound, seed);
                Ok(CxlMemory { range, node, seed, mode: Some(Mode::Device(bound)) })
            }
            Err(error) => {
                // Nothing of the memory is present, so withdrawing it cannot fail.
                must("CXL", engine.hotplug.withdraw(region));
                Err(error.into())
            }
        }
    }

    /// Returns how the RAM is online, or `None` if the memory is device memory.
    pub(crate) fn ram(&self) -> Option<OnlineType> {
        match &self.mode {
            Some(Mode::Ram(ram)) => Some(ram.kind()),
            _ => None,
        }
    }

    /// Checks device memory: its descriptors, and the patterns in it. Returns how many of either were
    /// checked. Ends the run if one is wrong.
    pub(crate) fn check(&self) -> (u64, u64) {
        let Some(Mode::Device(bound)) = &self.mode else { return (0, 0) };
        let descriptors = must("CXL", check::descriptors(bound, false));
        (descriptors, must("CXL", check::data(bound, self.seed)))
    }

    /// Makes the memory RAM, and puts it online.
    pub(crate) fn make_ram(
        &mut self,
        engine: &mut Engine,
        kind: OnlineType,
    ) -> Result<(), ChangeError> {
        match self.mode.take() {
            Some(Mode::Device(bound)) => {
                let changed = bound.into_ram(engine, kind).map(Mode::Ram);
                self.finish(
                    changed.map_err(|Unchanged { memory, why }| (Mode::Device(memory), why)),
                )
            }
            Some(Mode::Ram(mut ram)) if ram.kind() == OnlineType::Offline => {
                let changed = ram.put_online(engine, kind);
                self.mode = Some(Mode::Ram(ram));
                changed.map_err(ChangeError::Reconfigure)
            }
            mode => {
                self.mode = mode;
                Err(ChangeError::IsOnline)
            }
        }
    }

    /// Makes RAM device memory again, and describes it. Takes it offline before, if `force` is set.
    pub(crate) fn make_device(
        &mut self,
        engine: &mut Engine,
        force: bool,
    ) -> Result<(), ChangeError> {
        match self.mode.take() {
            Some(Mode::Ram(ram)) if force || ram.kind() == OnlineType::Offline => {
                let changed = ram.into_device(engine).map(|bound| {
                    must("CXL", bound.describe());
                    Mode::Device(bound)
                });
                self.finish(changed.map_err(|Unchanged { memory, why }| (Mode::Ram(memory), why)))
            }
            mode => {
                let is_device = matches!(mode, Some(Mode::Device(_)));
                self.mode = mode;
                Err(if is_device { ChangeError::IsDevice } else { ChangeError::Online })
            }
        }
    }

    /// Fills device memory with patterns, after it was RAM.
    pub(crate) fn write_data(&self) {
        if let Some(Mode::Device(bound)) = &self.mode {
            check::write_data(bound, self.seed);
        }
    }

    fn finish(
        &mut self,
        changed: Result<Mode, (Mode, ReconfigureError)>,
    ) -> Result<(), ChangeError> {
        let (mode, result) = match changed {
            Ok(mode) => (mode, Ok(())),
            Err((mode, why)) => (mode, Err(ChangeError::Reconfigure(why))),
        };
        self.mode = Some(mode);
        result
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::NoMemory => f.write_str("there is no such memory"),
            ChangeError::IsDevice => f.write_str("the memory is device memory already"),
            ChangeError::IsOnline => f.write_str("the memory is online already"),
            ChangeError::Online => f.write_str("the memory is online"),
            ChangeError::Reconfigure(error) => error.fmt(f),
        }
    }
}
