//! Persistent memory, bound and unbound: attached as a device's, and each of its frames described.
//!
//! Binding takes what it needs piece by piece; whatever stops it, all of it is undone, by the same
//! steps that unbind.

mod check;
mod reconfigure;
mod run;
mod supply;

use super::engine::Engine;
use super::flush::flush_all;
use super::memory::{AddressSpace, alloc_frames, virt};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::slice;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{AddError, AddRequest, AllocError, AllocRequest, Bytes, DeviceError, Pfn, PfnRange};
use hotmem_directmap::{Access, DescriptorMapError};
use hotmem_guest::cmdline::{MapOn, Namespace, Options};
use hotmem_guest::descriptor::{Owner, Page, address_of};
use hotmem_guest::layout::{DESCRIPTOR_MAP_BASE, DESCRIPTORS};
use hotmem_guest::to_usize;
use hotmem_memmap::{
    Altmap, AltmapError, Backing, Compound, DescribeError, Kind, MapLayout, Memmap, ShareError,
    Slots, SlotsError,
};
pub(super) use run::run;
use supply::{Supply, give_back};

/// As what to bind.
#[derive(Clone, Copy)]
struct How {
    kind: Kind,
    compound: Compound,
    shared_tails: bool,
    map: MapOn,
}

/// Memory that is bound.
struct Bound {
    /// All of it.
    region: PfnRange,
    /// What is described.
    data: PfnRange,
    how: How,
    layout: MapLayout,
    owner: Owner,
    /// The frame that the tails share.
    tails: Option<Pfn>,
}

/// The reason why it was not bound.
enum BindError {
    /// The engine refuses it.
    Attach(AddError),
    /// Its tails cannot share.
    Share(ShareError),
    /// Its own descriptors do not fit.
    Altmap(AltmapError),
    /// There is no memory for its descriptors.
    NoMemory(AllocError),
    /// It does not fit into the descriptor map.
    DescriptorMap(DescriptorMapError),
    /// Its descriptors cannot be addressed.
    Slots(SlotsError),
    /// It does not consist of whole compounds.
    Describe(DescribeError),
}

impl How {
    fn wanted(namespace: Namespace, options: &Options) -> Self {
        let (kind, compound) = match namespace {
            Namespace::FsDax => (Kind::FileSystemDax, Compound::SINGLE),
            Namespace::DevDax | Namespace::SystemRam => (Kind::DeviceDax, options.compound),
        };
        How { kind, compound, shared_tails: options.shared_tails, map: options.map }
    }

    fn memmap(self, owner: &Owner) -> Result<Memmap<'_, Owner>, BindError> {
        let memmap = Memmap::new(self.kind, self.compound, owner);
        if self.shared_tails {
            memmap.sharing_tails().map_err(BindError::Share)
        } else {
            Ok(memmap)
        }
    }
}

impl Bound {
    /// Makes `region`, whole pageblocks, a device's, with room for its descriptors. They are still
    /// to be [described](Bound::describe).
    fn bind(engine: &mut Engine, region: PfnRange, how: How) -> Result<Bound, BindError> {
        engine.hotplug.add(AddRequest::range(region).as_device()).map_err(BindError::Attach)?;
        Bound::of_device(engine.space(), region, how).inspect_err(|_| {
            // SAFETY: attached just now and used by nobody yet, so this cannot fail.
            let _ = unsafe { engine.hotplug.detach(region) };
        })
    }

    /// Makes room for the descriptors of what is the device's already.
    fn of_device(space: &mut AddressSpace, region: PfnRange, how: How) -> Result<Bound, BindError> {
        let owner = Owner::device(region.start().phys_addr(), DESCRIPTOR_MAP_BASE);
        let layout = *how.memmap(&owner)?.layout();
        let (data, mut supply) = match how.map {
            MapOn::Device => {
                let altmap = carve(region, &layout).map_err(BindError::Altmap)?;
                (altmap.data(), Supply::on_device(altmap.map()))
            }
            MapOn::Memory => (whole_compounds(region, layout.compound())?, Supply::of_memory()),
        };
        let mut bound = Bound { region, data, how, layout, owner, tails: None };
        match bound.map(space, &mut supply) {
            Ok(()) => Ok(bound),
            Err(error) => {
                bound.forget(space);
                Err(error)
            }
        }
    }

    /// Writes all descriptors. Returns how many bytes.
    fn describe(&self) -> Result<Bytes, BindError> {
        let memmap = self.how.memmap(&self.owner)?;
        let base = to_usize(address_of(self.data.start()));
        let Some(base) = NonNull::new(core::ptr::with_exposed_provenance_mut(base)) else {
            return Err(BindError::Slots(SlotsError::Misaligned(self.data)));
        };
        // SAFETY: `map` has put frames behind all pages of these slots, nobody else uses them, and
        // they stay until it is unbound.
        let slots = unsafe { Slots::mapped(self.data, base, &self.layout) };
        let slots = slots.map_err(BindError::Slots)?;
        memmap.describe(slots).map_err(BindError::Describe)
    }

    /// Takes its descriptors away, and then the memory.
    fn unbind(self, engine: &mut Engine) -> Result<(), DeviceError> {
        let region = self.region;
        self.forget(engine.space());
        // SAFETY: `self` was the only one to use it.
        unsafe { engine.hotplug.detach(region) }
    }

    /// Takes its descriptors away. The memory stays the device's.
    fn forget(self, space: &mut AddressSpace) {
        let on_device = self.how.map == MapOn::Device;
        space.descriptor_map_mut().unmap(
            DESCRIPTORS.pages_of(self.data),
            flush_all,
            |frames, access| {
                if !on_device && access == Access::Write {
                    give_back(frames);
                }
            },
            |table| give_back(one(table)),
        );
        if let Some(tails) = self.tails.filter(|_| !on_device) {
            give_back(one(tails));
        }
    }

    fn map(&mut self, space: &mut AddressSpace, supply: &mut Supply) -> Result<(), BindError> {
        if self.layout.shares_tails() {
            self.map_compounds(space, supply)
        } else {
            self.map_all(space, supply)
        }
    }

    /// A frame for each page of descriptors.
    fn map_all(&self, space: &mut AddressSpace, supply: &mut Supply) -> Result<(), BindError> {
        let mut pages = DESCRIPTORS.pages_of(self.data);
        while !pages.is_empty() {
            let to = (pages.start | (PAGEBLOCK_FRAMES as u64 - 1)) + 1;
            let wanted = match self.how.map {
                MapOn::Device => pages.end - pages.start,
                // Whole pageblocks where there can be large pages.
                MapOn::Memory => pages.end.min(to) - pages.start,
            };
            let frames = supply.take(wanted).map_err(BindError::NoMemory)?;
            if let Err(error) = space.descriptor_map_mut().map(pages.start, frames, table) {
                let mapped = frames.start().checked_add(error.page() - pages.start);
                supply.put_back(frames.split_at(mapped.unwrap_or(frames.end())).1);
                return Err(BindError::DescriptorMap(error));
            }
            pages.start += frames.frames();
        }
        Ok(())
    }

    /// A frame for the first page of each compound's descriptors, and the same one for all others.
    fn map_compounds(
        &mut self,
        space: &mut AddressSpace,
        supply: &mut Supply,
    ) -> Result<(), BindError> {
        let tails = match self.how.map {
            MapOn::Device => self.region.start(),
            MapOn::Memory => {
                alloc_frames(AllocRequest::frames(1)).map_err(BindError::NoMemory)?.start()
            }
        };
        self.tails = Some(tails);
        let descriptors = virt(tails.phys_addr()).cast::<MaybeUninit<Page>>();
        // SAFETY: the frame is mapped, and nobody else's.
        let descriptors = unsafe {
            slice::from_raw_parts_mut(descriptors, to_usize(FRAME_SIZE) / size_of::<Page>())
        };
        self.how.memmap(&self.owner)?.describe_shared_tails(descriptors);

        let (mut last, mut refused) = (PfnRange::EMPTY, None);
        let pages = self.layout.pages(self.data).map_while(|page| {
            let number = page.offset.0 / FRAME_SIZE;
            match page.backing {
                Backing::SharedTails => Some((number, tails, Access::Read)),
                Backing::Own => match supply.take(1) {
                    Ok(frame) => {
                        last = frame;
                        Some((number, frame.start(), Access::Write))
                    }
                    Err(error) => {
                        refused = Some(error);
                        None
                    }
                },
            }
        });
        if let Err(error) = space.descriptor_map_mut().map_each(pages, table) {
            // Only at a page of its own is there something to be made, or in the way.
            supply.put_back(last);
            return Err(BindError::DescriptorMap(error));
        }
        refused.map_or(Ok(()), |error| Err(BindError::NoMemory(error)))
    }
}

/// Returns what of the device can be described if its descriptors lie elsewhere.
fn whole_compounds(range: PfnRange, compound: Compound) -> Result<PfnRange, BindError> {
    let whole = range.align_inward(compound.frames());
    if whole.is_empty() {
        return Err(BindError::Describe(DescribeError::NotWholeCompounds { range, compound }));
    }
    Ok(whole)
}

/// Divides the device: a frame for shared tails, if there are to be any, the descriptors, the data.
/// The descriptors lie so that large pages of the map can show them, if that is possible.
fn carve(region: PfnRange, layout: &MapLayout) -> Result<Altmap, AltmapError> {
    let reserved = u64::from(layout.shares_tails());
    let at = |skipped| Altmap::carve(region, reserved + skipped, layout);
    let large = PAGEBLOCK_FRAMES as u64;
    let is_alike = |altmap: &Altmap| {
        altmap.map().start().number() % large == DESCRIPTORS.pages_of(altmap.data()).start % large
    };
    let alike = (0..large).filter_map(|skipped| at(skipped).ok()).find(is_alike);
    alike.filter(|_| !layout.shares_tails()).map_or_else(|| at(0), Ok)
}

/// Returns a frame for a page table.
fn table() -> Option<Pfn> {
    Some(alloc_frames(AllocRequest::frames(1)).ok()?.start())
}

fn one(frame: Pfn) -> PfnRange {
    PfnRange::with_len(frame, 1).unwrap_or(PfnRange::EMPTY)
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Attach(error) => error.fmt(f),
            BindError::Share(error) => error.fmt(f),
            BindError::Altmap(error) => error.fmt(f),
            BindError::NoMemory(error) => write!(f, "no memory for descriptors: {error}"),
            BindError::DescriptorMap(error) => error.fmt(f),
            BindError::Slots(error) => error.fmt(f),
            BindError::Describe(error) => error.fmt(f),
        }
    }
}
