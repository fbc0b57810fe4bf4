//! Device memory: there and mapped, but its driver's and not the allocator's.
//!
//! ```text
//! announced ───add────▶ device ──device_to_ram──▶ offline ──online──▶ …
//!     ▲                 │    ▲                       │
//!     └──────detach─────┘    └────ram_to_device──────┘
//! ```
//! It is added with [`AddRequest::as_device`](super::AddRequest::as_device), at the grain of
//! pageblocks, beside RAM in the same section. It is in no zone, so what surrounds it is not
//! contiguous; it is never allocated, isolated, reported or poisoned. It stays mapped while it
//! becomes RAM, or a device's again, so that costs a few words a section.

use super::describe::kept_of;
use super::{Hotplug, OnlineError, OnlineType, RemoveError};
use crate::addr::PfnRange;
use crate::frames::AllocError;
use crate::hooks::Hooks;
use crate::mapping::Mapping;
use crate::platform::Platform;
use crate::words::Part;
use crate::words::Zone;
use core::fmt;

/// Why device memory stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceError {
    /// No frames, or not whole pageblocks (2 MiB).
    Unaligned(PfnRange),
    /// This part of it is no device memory, or not all of it is in one announced region.
    NotDevice(PfnRange),
    /// It cannot come online as RAM.
    Online(OnlineError),
    /// So many frames to describe it as RAM could not be had.
    NoFrames {
        /// How many, in one piece.
        frames: u64,
        /// Why.
        error: AllocError,
    },
}

impl<'f, P: Platform, M: Mapping> Hotplug<'f, P, M> {
    /// Unmaps device memory. `range` stays announced, and is absent.
    ///
    /// Cost: O(sections), and the unmapping.
    ///
    /// # Safety
    /// The driver does not use `range` any more.
    ///
    /// # Errors
    /// [`DeviceError`]. Nothing has changed.
    pub unsafe fn detach(&mut self, range: PfnRange) -> Result<(), DeviceError> {
        self.check_device(range)?;
        // SAFETY: device memory is mapped, and its driver does not use it, by the caller's promise.
        unsafe { self.mapping.unmap(range) };
        self.set_device(range, false);
        self.forget(range);
        Ok(())
    }

    /// Makes device memory RAM, as `daxctl reconfigure-device --mode=system-ram` does, and puts it
    /// online for `kind`: [`OnlineType::Offline`] leaves it offline, [`OnlineType::Online`] asks
    /// the policy, `None` stands for what [the settings](super::Settings) says. All of it
    /// or nothing.
    ///
    /// Cost: that of [`online`](Self::online).
    ///
    /// # Safety
    /// The driver does not use `range` any more, unless this is refused.
    ///
    /// # Errors
    /// [`DeviceError`]: it is the device's as before.
    pub unsafe fn device_to_ram(
        &mut self,
        range: PfnRange,
        kind: impl Into<Option<OnlineType>>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), DeviceError> {
        self.check_device(range)?;
        let kind = kind.into().unwrap_or(self.settings.auto_online);
        if let Some(poison) = kept_of(range, &self.mapping).find_map(|kept| self.poison_in(kept)) {
            return Err(DeviceError::Online(OnlineError::Poisoned(poison)));
        }
        if let Some(kept) = self.leaves_with_descriptors(range) {
            return Err(DeviceError::Online(OnlineError::Held(kept)));
        }
        let frames = self.mapping.descriptors_needed(range);
        let mut spare =
            self.spare(frames).map_err(|error| DeviceError::NoFrames { frames, error })?;
        self.set_device(range, false);
        self.set_present(range, true);
        // The kernel is asked before its descriptors overwrite a part of the device's data.
        let agreed = match kind {
            OnlineType::Offline => Ok(()),
            _ => self.check_online(range).and_then(|()| self.agree(range, kind, hooks)),
        };
        match agreed {
            Ok(()) => self.describe(range, &mut spare),
            Err(_) => {
                self.set_present(range, false);
                self.set_device(range, true);
            }
        }
        self.frames.free_rest(spare);
        agreed.map_err(DeviceError::Online)?;
        if kind != OnlineType::Offline {
            self.bring_online(range, kind, hooks);
        }
        Ok(())
    }

    /// Makes RAM that is offline a device's, as `daxctl reconfigure-device --mode=devdax` does.
    /// Take it [offline](Self::offline) first, which is all or nothing; from there on only a wrong
    /// range is refused. Its poison is remembered: it is the same memory.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RemoveError`]: it is RAM as before.
    pub fn ram_to_device(&mut self, range: PfnRange) -> Result<(), RemoveError> {
        self.check_removable(range)?;
        self.set_present(range, false);
        self.undescribe(range);
        self.set_device(range, true);
        Ok(())
    }

    /// Whether all of `range` is device memory in one region.
    fn check_device(&self, range: PfnRange) -> Result<(), DeviceError> {
        if range.is_empty() || !range.is_pageblock_aligned() {
            return Err(DeviceError::Unaligned(range));
        }
        if !self.is_announced(range) {
            return Err(DeviceError::NotDevice(range));
        }
        let other = self.all_parts(range).find_map(|part| match part {
            Ok(Part { section, blocks }) => {
                let other = blocks & !section.device();
                (other != 0).then(|| section.first_block(other))
            }
            Err(absent) => Some(absent),
        });
        other.map_or(Ok(()), |other| Err(DeviceError::NotDevice(other)))
    }

    /// What is not present is a device's from now on, or nobody's.
    pub(super) fn set_device(&self, range: PfnRange, device: bool) {
        let zone = if device { Zone::Movable } else { Zone::Kernel };
        let mut moves = self.frames.no_moves_yet();
        for Part { section, blocks } in self.parts(range) {
            self.frames.set_zone(section, blocks, zone, &mut moves);
        }
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceError::Unaligned(range) => write!(f, "{range} is not whole pageblocks"),
            DeviceError::NotDevice(range) => write!(f, "{range} is no device memory"),
            DeviceError::NoFrames { frames, error } => {
                write!(f, "no {frames} frames to describe it as RAM: {error}")
            }
            DeviceError::Online(error) => write!(f, "it cannot be used as RAM: {error}"),
        }
    }
}

impl core::error::Error for DeviceError {}
