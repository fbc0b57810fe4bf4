//! Detaches device memory, which its driver owns, and converts it to RAM and back.
//!
//! ```text
//! announced ───add────▶ device ──device_to_ram──▶ offline ──online──▶ …
//!     ▲                 │    ▲                       │
//!     └──────detach─────┘    └────ram_to_device──────┘
//! ```
//! Device memory is added with [`AddRequest::device`](super::AddRequest::device), in whole
//! pageblocks, and may share a section with RAM. Device memory is in no zone, so a zone that
//! surrounds it is not contiguous. Device memory is never allocated, isolated, reported or
//! poisoned. It stays mapped when it becomes RAM, and the RAM stays mapped when it becomes device
//! memory again, so a conversion changes only a few words of each section.

use super::spare_frames::SpareFrames;
use super::{AddError, Hotplug, OnlineType};
use crate::addr::PfnRange;
use crate::hooks::Hooks;
use crate::mapping::Map;
use crate::platform::Platform;
use crate::range_error::{RangeError, RangeErrorKind};
use crate::words::{SectionPart, Zone};

impl<'f, P: Platform, M: Map> Hotplug<'f, P, M> {
    /// Removes device memory: unmaps it and makes it absent. `range` stays announced.
    ///
    /// Cost: O(sections), and the unmapping.
    ///
    /// # Safety
    /// The driver does not use `range` any more.
    ///
    /// # Errors
    /// [`RangeError`]. The failed call changed nothing.
    pub unsafe fn detach(&mut self, range: PfnRange) -> Result<(), RangeError> {
        self.check_device(range)?;
        // SAFETY: `range` is device memory, so it is mapped. The caller promises that the driver
        // does not use it.
        unsafe { self.mapping.unmap(range) };
        self.set_device(range, false);
        self.frames.call().forget_poison(range);
        self.release_tables(range);
        Ok(())
    }

    /// Makes device memory RAM, as `daxctl reconfigure-device --mode=system-ram` does, and puts it
    /// online for `kind`. `None` stands for the type in [the settings](super::Settings). Converts
    /// all of the range or nothing.
    ///
    /// Cost: that of [`online`](Self::online).
    ///
    /// # Safety
    /// The driver does not use `range` any more, unless this call fails.
    ///
    /// # Errors
    /// [`AddError`]. The memory is still device memory.
    pub unsafe fn device_to_ram(
        &mut self,
        range: PfnRange,
        kind: impl Into<Option<OnlineType>>,
        hooks: &mut dyn Hooks,
    ) -> Result<(), AddError> {
        self.check_device(range)?;
        let kind = kind.into().unwrap_or(self.settings.auto_online);
        self.check_descriptor_places(range)?;
        if let Some(descriptor_block) = self.descriptors_being_removed(range) {
            return Err(RangeErrorKind::Held.at(descriptor_block).into());
        }
        self.set_device(range, false);
        self.set_present(range, true);
        // Ask the kernel before it writes descriptors, because these may overwrite a part of the
        // device's data; and before anything is allocated, so that a veto changes nothing.
        let spare = self.agree_to_describe(range, kind, hooks);
        match spare {
            Ok(mut spare) => self.describe(range, &mut spare),
            Err(error) => {
                self.set_present(range, false);
                self.set_device(range, true);
                return Err(error);
            }
        }
        if kind != OnlineType::Offline {
            self.bring_online(range, kind, hooks);
        }
        Ok(())
    }

    /// Asks the kernel whether `range` may come online for `kind`, and allocates frames for its
    /// descriptors.
    fn agree_to_describe(
        &mut self,
        range: PfnRange,
        kind: OnlineType,
        hooks: &mut dyn Hooks,
    ) -> Result<SpareFrames<'f, P>, AddError> {
        if kind != OnlineType::Offline {
            self.ask_to_go_online(range, kind, hooks)?;
        }
        let frames = self.descriptor_frames_needed(range);
        SpareFrames::allocate(self.frames, frames, false).map_err(|error| {
            if kind != OnlineType::Offline {
                hooks.online_cancelled(range);
            }
            AddError::NoTables { frames, error }
        })
    }

    /// Makes offline RAM device memory, as `daxctl reconfigure-device --mode=devdax` does. Take the
    /// memory [offline](Self::offline) first: then this call fails only for a wrong range. The
    /// engine keeps the record of poisoned frames, because it is still the same memory.
    ///
    /// Cost: O(sections).
    ///
    /// # Errors
    /// [`RangeError`]. The memory is still RAM.
    pub fn ram_to_device(&mut self, range: PfnRange) -> Result<(), RangeError> {
        self.check_removable(range)?;
        self.set_present(range, false);
        self.undescribe(range);
        self.set_device(range, true);
        Ok(())
    }

    /// Checks that all of `range` is device memory in one region.
    fn check_device(&self, range: PfnRange) -> Result<(), RangeError> {
        self.check(range, RangeErrorKind::NotDevice, |section| {
            [(!section.device_blocks(), RangeErrorKind::NotDevice)]
        })
    }

    /// Makes `range` device memory or absent. `range` is not present.
    pub(super) fn set_device(&self, range: PfnRange, device: bool) {
        let zone = if device { Zone::Movable } else { Zone::Kernel };
        let call = self.frames.call();
        for SectionPart { section, blocks } in self.section_parts(range) {
            call.set_zone(section, blocks, zone);
        }
    }
}
