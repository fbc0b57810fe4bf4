//! Descriptors of RAM: 64 bytes for each frame that there is, written when it comes.

use super::WATCHDOG;
use super::hooks::KernelHooks;
use super::memory::FRAMES;
use super::session::Engine;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use hotmem::geometry::SECTION_FRAMES;
use hotmem::memmap::{Compound, Kind, MapLayout, Memmap, Slots};
use hotmem::{Bytes, Pfn, PfnRange, State, Want};
use hotmem_guest::descriptor::{Owner, Page, address_of};
use hotmem_guest::descriptor_map::{DescriptorMap, MapError};
use hotmem_guest::pattern::mix;
use hotmem_guest::{described, to_usize};

/// What frames are described as until somebody uses them.
const KIND: Kind = Kind::Generic;
/// Frames whose descriptors are written before the watchdog hears of it: 8 GiB.
const AT_ONCE: u64 = 64 * SECTION_FRAMES as u64;

/// A descriptor that is not as it was written.
pub(crate) struct Wrong(Pfn);

/// Which descriptors to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Every one.
    All,
    /// A few of each section.
    Sample,
}

impl Engine {
    /// Describes the memory that there is at boot, in some of it.
    pub(crate) fn describe_boot_memory(&mut self) -> Result<(), MapError> {
        self.hooks.described = true;
        let frame = || Some(FRAMES.alloc(Want::frames(1)).ok()?.start());
        let Engine { hotplug, hooks } = self;
        each_run(hotplug, |run| {
            // Boot memory stays, so it need not hold its own descriptors.
            run.chunks(SECTION_FRAMES as u64 / 2).try_for_each(|part| hooks.write(part, frame))
        })
    }

    /// Looks at the descriptors of all RAM; at how many.
    pub(crate) fn check_descriptors(&self, look: Look) -> Result<u64, Wrong> {
        let memmap = Memmap::new(KIND, Compound::SINGLE, &Owner::RAM);
        let mut looked = 0;
        each_run(&self.hotplug, |run| {
            for part in run.sections() {
                let (first, last) = (part.start().number(), part.end().number() - 1);
                let some = [first, first + mix(first) % part.frames(), last];
                let (every, some) = match look {
                    Look::All => (first..last + 1, &[][..]),
                    Look::Sample => (0..0, &some[..]),
                };
                for pfn in every.chain(some.iter().copied()).filter_map(Pfn::new) {
                    if read(pfn) != Owner::RAM.page(pfn, KIND, memmap.layout()) {
                        return Err(Wrong(pfn));
                    }
                    looked += 1;
                }
                WATCHDOG.progress();
            }
            Ok(())
        })?;
        Ok(looked)
    }
}

impl KernelHooks {
    /// Makes room for the descriptors of `range`, which has none, and writes them.
    pub(super) fn write(
        &mut self,
        range: PfnRange,
        frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), MapError> {
        described::map(self.space.descriptor_map_mut(), range, frame)?;
        let memmap = Memmap::new(KIND, Compound::SINGLE, &Owner::RAM);
        for part in range.chunks(AT_ONCE) {
            // SAFETY: there are frames behind all of these since the line above, nobody else uses
            // them, and they stay for as long as what they describe.
            let slots = unsafe { slots(part, memmap.layout()) };
            let written = slots.and_then(|slots| memmap.describe(slots).ok());
            self.written = self.written + written.unwrap_or(Bytes::ZERO);
            WATCHDOG.progress();
        }
        Ok(())
    }

    /// The map of descriptors, if RAM is described at all.
    pub(super) fn map_of_ram(&mut self) -> Option<&mut DescriptorMap> {
        self.described.then(|| self.space.descriptor_map_mut())
    }
}

/// The descriptors of these frames.
///
/// # Safety
/// As for [`Slots::mapped`].
unsafe fn slots(range: PfnRange, layout: &MapLayout) -> Option<Slots<'static, Page>> {
    let base = core::ptr::with_exposed_provenance_mut(to_usize(address_of(range.start())));
    // SAFETY: as the caller says.
    unsafe { Slots::mapped(range, NonNull::new(base)?, layout) }.ok()
}

/// A descriptor of RAM that there is.
fn read(pfn: Pfn) -> Page {
    let page = core::ptr::with_exposed_provenance::<MaybeUninit<Page>>(to_usize(address_of(pfn)));
    // SAFETY: RAM that there is has its descriptor mapped and written, and nobody changes it.
    unsafe { page.read().assume_init() }
}

/// Calls `each` for all RAM that there is.
fn each_run<E>(
    hotplug: &hotmem::Hotplug<'static, super::smp::ThisCpu>,
    mut each: impl FnMut(PfnRange) -> Result<(), E>,
) -> Result<(), E> {
    for (_, region) in hotplug.regions() {
        let mut rest = region;
        while !rest.is_empty() {
            let (run, state) = hotplug.state_at(rest.start(), rest.end());
            if matches!(state, State::Offline | State::Online | State::OnlineMovable) {
                each(run)?;
            }
            rest = rest.split_at(run.end()).1;
        }
    }
    Ok(())
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {} has {:?} as its descriptor", self.0, read(self.0))
    }
}
