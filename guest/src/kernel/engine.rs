//! Joins the engine with this kernel's mapping and hooks.

use super::hooks::{KernelHooks, KernelMapping};
use super::memory::AddressSpace;
use super::take_once::TakeOnce;
use super::this_cpu::ThisCpu;
use hotmem::{Budget, Bytes, Hotplug, OnlineType};
use hotmem_guest::cmdline::{Online, Options};

/// The amount of memory that is migrated before the devices are polled again. To check and move a
/// pageblock takes tenths of a second on a slow host, and the balloon must be answered meanwhile.
pub(crate) const BUDGET: Budget = Budget { pageblocks: 1 };
/// The amount of memory that a removal must leave free for the kernel itself, for example for page
/// tables.
const MIN_FREE: Bytes = Bytes::mib(1);

/// The engine and this kernel's hooks.
pub(crate) struct Engine {
    pub(crate) hotplug: Hotplug<'static, ThisCpu, KernelMapping>,
    pub(crate) hooks: KernelHooks,
}

impl Engine {
    /// Joins the engine with this kernel's hooks. Ends the run at the second call.
    #[inline(never)]
    pub(crate) fn begin(
        mut hotplug: Hotplug<'static, ThisCpu, KernelMapping>,
        options: &Options,
    ) -> &'static mut Self {
        static ENGINE: TakeOnce<Option<Engine>> = TakeOnce::new(None);
        hotplug.settings.min_free_frames = MIN_FREE.frames();
        ENGINE.put(Engine { hotplug, hooks: KernelHooks::new(options) })
    }

    /// Returns the direct map and the descriptors.
    pub(crate) fn mapping(&mut self) -> &mut KernelMapping {
        // SAFETY: no caller replaces the mapping, because there is no second `KernelMapping`, and
        // no caller changes what the engine has mapped.
        unsafe { self.hotplug.mapping_mut() }
    }

    /// Returns the kernel's address space.
    pub(crate) fn space(&mut self) -> &mut AddressSpace {
        &mut self.mapping().space
    }
}

/// Converts the option `hotmem.online` to the engine's type.
pub(crate) fn online_type(online: Online) -> OnlineType {
    match online {
        Online::Offline => OnlineType::Offline,
        Online::Online => OnlineType::Online,
        Online::Kernel => OnlineType::Kernel,
        Online::Movable => OnlineType::Movable,
    }
}
