//! Device memory that commands make RAM, and device memory again: that of CXL devices, and persistent
//! memory.

use super::device_memory::{
    BindError, BindParameters, BoundMemory, Ram, ReconfigureError, Unchanged, check,
};
use super::engine::Engine;
use super::fatal::must;
use super::take_once::TakeOnce;
use crate::arch::LAYOUT;
use core::fmt;
use hotmem::{Announce, AnnounceError, NodeId, OnlineType, PfnRange};
use hotmem_guest::limits::MAX_DAX;

static MEMORIES: TakeOnce<DaxMemories> =
    TakeOnce::new(DaxMemories { memories: [const { None }; MAX_DAX] });

/// All such memory, by the numbers that events and commands use.
pub(crate) struct DaxMemories {
    memories: [Option<DaxMemory>; MAX_DAX],
}

/// Memory of one device, or of several whose addresses alternate.
pub(crate) struct DaxMemory {
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

/// The reason why memory of a device is not used.
pub(crate) enum DaxError {
    /// All numbers are in use.
    TooMany,
    /// The memory lies beyond the direct map.
    BeyondDirectMap(PfnRange),
    /// The engine refuses to hear of the memory.
    Announce(AnnounceError),
    /// The memory was not bound.
    Bind(BindError),
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

impl DaxMemories {
    /// Takes the only list, which is empty.
    pub(crate) fn take() -> &'static mut Self {
        MEMORIES.take()
    }

    /// Adds memory with this number.
    pub(crate) fn add(&mut self, number: usize, memory: DaxMemory) -> Result<(), DaxError> {
        let place = self.memories.get_mut(number).ok_or(DaxError::TooMany)?;
        *place = Some(memory);
        Ok(())
    }

    /// Returns the memory with this number.
    pub(crate) fn get(&mut self, number: usize) -> Result<&mut DaxMemory, ChangeError> {
        let memory = self.memories.get_mut(number).and_then(Option::as_mut);
        memory.ok_or(ChangeError::NoMemory)
    }
}

impl DaxMemory {
    /// Announces memory at addresses that reach it as memory of `node`, and binds it as device memory.
    #[inline(never)]
    pub(crate) fn bind(
        range: PfnRange,
        node: NodeId,
        parameters: BindParameters,
        seed: u64,
        engine: &mut Engine,
    ) -> Result<Self, DaxError> {
        check_mappable(range)?;
        let announced = engine.hotplug.announce(Announce { node, ..range.into() });
        let region = announced.map_err(DaxError::Announce)?;
        let bound =
            BoundMemory::bind(engine, range, parameters).and_then(|bound| match bound.describe() {
                Ok(_) => Ok(bound),
                Err(error) => {
                    must("device memory", bound.unbind(engine));
                    Err(error)
                }
            });
        match bound {
            Ok(bound) => {
                check::write_data(&bound, seed);
                Ok(DaxMemory { range, node, seed, mode: Some(Mode::Device(bound)) })
            }
            Err(error) => {
                // Nothing of the memory is present, so withdrawing it cannot fail.
                must("device memory", engine.hotplug.withdraw(region));
                Err(DaxError::Bind(error))
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
        let descriptors = must("device memory", check::descriptors(bound, false));
        (descriptors, must("device memory", check::data(bound, self.seed)))
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
                    must("device memory", bound.describe());
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

/// Checks that the direct map can map all of a range.
pub(crate) fn check_mappable(range: PfnRange) -> Result<(), DaxError> {
    if range.end().phys_addr() > LAYOUT.direct_map.bytes().0 {
        return Err(DaxError::BeyondDirectMap(range));
    }
    Ok(())
}

impl fmt::Display for DaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaxError::TooMany => write!(f, "there is more memory than {MAX_DAX} numbers"),
            DaxError::BeyondDirectMap(range) => write!(f, "{range} lies beyond the direct map"),
            DaxError::Announce(error) => error.fmt(f),
            DaxError::Bind(error) => error.fmt(f),
        }
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
