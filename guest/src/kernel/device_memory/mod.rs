//! Binds a device's memory: attaches it to the engine, and describes each of its frames.
//!
//! If binding fails at any step, the earlier steps are undone in the same way as by unbinding.

pub(super) mod check;
mod reconfigure;
mod supply;

use super::engine::Engine;
use super::memory::{AddressSpace, alloc_frames, virt};
use crate::arch::LAYOUT;
use crate::kernel::fatal::must;
use crate::kernel::memory::RAM_OWNER;
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::slice;
use hotmem::geometry::{FRAME_SIZE, PAGEBLOCK_FRAMES};
use hotmem::{AddError, AddRequest, AllocError, AllocRequest, Bytes, Pfn, PfnRange, RangeError};
use hotmem_directmap::{Access, DescriptorMapError};
use hotmem_guest::cmdline::{DescriptorPlace, Namespace, Options};
use hotmem_guest::descriptor::{Owner, Page};
use hotmem_guest::to_usize;
use hotmem_memmap::{
    Altmap, AltmapError, Compound, DescribeError, Kind, MapLayout, Memmap, ShareError, Slots,
    SlotsError,
};
pub(super) use reconfigure::{Ram, ReconfigureError, Unchanged};
use supply::{DescriptorFrames, free_frames};

/// The parameters of binding.
#[derive(Clone, Copy)]
pub(super) struct BindParameters {
    kind: Kind,
    compound: Compound,
    shared_tails: bool,
    map: DescriptorPlace,
}

/// Bound memory.
pub(super) struct BoundMemory {
    /// The whole range of the device's memory.
    region: PfnRange,
    /// The part of the region that has descriptors.
    pub(super) data: PfnRange,
    parameters: BindParameters,
    layout: MapLayout,
    owner: Owner,
    /// The frame of shared tails, if there is one.
    tails: Option<Pfn>,
}

/// The reason why memory was not bound.
pub(super) enum BindError {
    /// The engine refuses the memory.
    Attach(AddError),
    /// The tails cannot share a frame.
    SharedTails(ShareError),
    /// The descriptors do not fit on the device.
    Altmap(AltmapError),
    /// There is no memory for the descriptors.
    NoMemory(AllocError),
    /// The descriptors do not fit the descriptor map.
    DescriptorMap(DescriptorMapError),
    /// The [`Slots`], the places in memory of the descriptors, do not fit the data.
    Slots(SlotsError),
    /// The memory does not consist of whole compounds.
    Describe(DescribeError),
}

impl BindParameters {
    pub(super) fn wanted(namespace: Namespace, options: &Options) -> Self {
        let (kind, compound) = match namespace {
            Namespace::FsDax => (Kind::FileSystemDax, Compound::SINGLE),
            Namespace::DevDax | Namespace::SystemRam => (Kind::DeviceDax, options.compound),
        };
        BindParameters { kind, compound, shared_tails: options.shared_tails, map: options.map }
    }

    /// Returns the parameters of memory that is slow or far away, so that its descriptors lie in boot
    /// memory.
    pub(super) fn described_in_memory(options: &Options) -> Self {
        let wanted = BindParameters::wanted(Namespace::DevDax, options);
        BindParameters { map: DescriptorPlace::Memory, ..wanted }
    }

    fn memmap(self, owner: &Owner) -> Result<Memmap<'_, Owner>, BindError> {
        let memmap = Memmap::new(self.kind, self.compound, owner);
        if self.shared_tails {
            memmap.sharing_tails().map_err(BindError::SharedTails)
        } else {
            Ok(memmap)
        }
    }
}

impl BoundMemory {
    /// Attaches `region`, which consists of whole pageblocks, as device memory. Maps its
    /// descriptors, which the caller must then [write](BoundMemory::describe).
    pub(super) fn bind(
        engine: &mut Engine,
        region: PfnRange,
        parameters: BindParameters,
    ) -> Result<BoundMemory, BindError> {
        engine
            .hotplug
            .add(AddRequest { device: true, ..region.into() })
            .map_err(BindError::Attach)?;
        BoundMemory::of_device(engine.space(), region, parameters).inspect_err(|_| {
            // SAFETY: the memory was just attached and nothing uses it, so detaching it cannot
            // fail.
            must("device memory", unsafe { engine.hotplug.detach(region) });
        })
    }

    /// Maps the descriptors of device memory that is attached already.
    fn of_device(
        space: &mut AddressSpace,
        region: PfnRange,
        parameters: BindParameters,
    ) -> Result<BoundMemory, BindError> {
        let owner = Owner::device(region.start().phys_addr(), LAYOUT.descriptor_map_base);
        let layout = *parameters.memmap(&owner)?.layout();
        let (data, mut supply) = match parameters.map {
            DescriptorPlace::Device => {
                let altmap = carve(region, &layout).map_err(BindError::Altmap)?;
                (altmap.data(), DescriptorFrames::on_device(altmap.map()))
            }
            DescriptorPlace::Memory => {
                (whole_compounds(region, layout.compound())?, DescriptorFrames::of_memory())
            }
        };
        let mut bound = BoundMemory { region, data, parameters, layout, owner, tails: None };
        match bound.map(space, &mut supply) {
            Ok(()) => Ok(bound),
            Err(error) => {
                bound.unmap_descriptors(space);
                Err(error)
            }
        }
    }

    /// Writes all descriptors. Returns the number of bytes written.
    pub(super) fn describe(&self) -> Result<Bytes, BindError> {
        let memmap = self.parameters.memmap(&self.owner)?;
        let base = to_usize(RAM_OWNER.descriptor(self.data.start()));
        let Some(base) = NonNull::new(core::ptr::with_exposed_provenance_mut(base)) else {
            return Err(BindError::Slots(SlotsError::Misaligned(self.data)));
        };
        // SAFETY: `map` has mapped all pages of the descriptors, nothing else uses the descriptors,
        // and they stay mapped until the memory is unbound.
        let slots = unsafe { Slots::mapped(self.data, base, &self.layout) };
        let slots = slots.map_err(BindError::Slots)?;
        memmap.describe(slots).map_err(BindError::Describe)
    }

    /// Unmaps the descriptors, and detaches the memory.
    pub(super) fn unbind(self, engine: &mut Engine) -> Result<(), RangeError> {
        let region = self.region;
        self.unmap_descriptors(engine.space());
        // SAFETY: `self` was the only user of the memory.
        unsafe { engine.hotplug.detach(region) }
    }

    /// Unmaps the descriptors. The memory stays attached.
    fn unmap_descriptors(self, space: &mut AddressSpace) {
        let on_device = self.parameters.map == DescriptorPlace::Device;
        space.descriptor_map_mut().unmap(
            LAYOUT.descriptors.pages_of(self.data),
            |frames, access| {
                if !on_device && access == Access::Write {
                    free_frames(frames);
                }
            },
            |table| free_frames(single_frame(table)),
        );
        if let Some(tails) = self.tails.filter(|_| !on_device) {
            free_frames(single_frame(tails));
        }
    }

    /// Returns the expected size of the memory that holds the descriptors.
    pub(super) fn map_bytes(&self) -> Bytes {
        let own = self.layout.frames_needed(self.data);
        Bytes((own + u64::from(self.layout.shares_tails())) * FRAME_SIZE)
    }

    fn map(
        &mut self,
        space: &mut AddressSpace,
        supply: &mut DescriptorFrames,
    ) -> Result<(), BindError> {
        if self.layout.shares_tails() {
            self.map_compounds(space, supply)
        } else {
            self.map_all(space, supply)
        }
    }

    /// Maps a frame of its own at each page of descriptors.
    fn map_all(
        &self,
        space: &mut AddressSpace,
        supply: &mut DescriptorFrames,
    ) -> Result<(), BindError> {
        let mut pages = LAYOUT.descriptors.pages_of(self.data);
        while !pages.is_empty() {
            let large_page_end = (pages.start | (PAGEBLOCK_FRAMES as u64 - 1)) + 1;
            let wanted = match self.parameters.map {
                DescriptorPlace::Device => pages.end - pages.start,
                // Take no frames beyond the end of the map's large page. So the next frames begin
                // at a large page, which can map them if they are a whole pageblock.
                DescriptorPlace::Memory => pages.end.min(large_page_end) - pages.start,
            };
            let frames = supply.take(wanted).map_err(BindError::NoMemory)?;
            if let Err(error) = space.descriptor_map_mut().map(pages.start, frames, allocate_table)
            {
                let mapped = frames.start().checked_add(error.page() - pages.start);
                supply.put_back(frames.split_at(mapped.unwrap_or(frames.end())).1);
                return Err(BindError::DescriptorMap(error));
            }
            pages.start += frames.frames();
        }
        Ok(())
    }

    /// Maps a frame at the first page of each compound's descriptors, and the shared frame at all
    /// others.
    fn map_compounds(
        &mut self,
        space: &mut AddressSpace,
        supply: &mut DescriptorFrames,
    ) -> Result<(), BindError> {
        let tails = match self.parameters.map {
            DescriptorPlace::Device => self.region.start(),
            DescriptorPlace::Memory => {
                alloc_frames(AllocRequest::frames(1)).map_err(BindError::NoMemory)?.start()
            }
        };
        self.tails = Some(tails);
        let descriptors = virt(tails.phys_addr()).cast::<MaybeUninit<Page>>();
        // SAFETY: the frame of the shared tails is mapped and has no other user.
        let descriptors = unsafe {
            slice::from_raw_parts_mut(descriptors, to_usize(FRAME_SIZE) / size_of::<Page>())
        };
        self.parameters.memmap(&self.owner)?.describe_shared_tails(descriptors);

        let map = space.descriptor_map_mut();
        for compound in self.data.chunks(self.layout.compound().frames()) {
            let pages = LAYOUT.descriptors.pages_of(compound);
            let own = supply.take(1).map_err(BindError::NoMemory)?;
            if let Err(error) = map.map(pages.start, own, allocate_table) {
                supply.put_back(own);
                return Err(BindError::DescriptorMap(error));
            }
            map.map_shared(pages.start + 1..pages.end, tails, allocate_table)
                .map_err(BindError::DescriptorMap)?;
        }
        Ok(())
    }
}

/// Returns the largest part of `range` that consists of whole compounds: the part that is described
/// if the descriptors do not lie on the device.
fn whole_compounds(range: PfnRange, compound: Compound) -> Result<PfnRange, BindError> {
    let whole = range.align_inward(compound.frames());
    if whole.is_empty() {
        return Err(BindError::Describe(DescribeError::NotWholeCompounds { range, compound }));
    }
    Ok(whole)
}

/// Divides the device into descriptors and data. If the layout has shared tails, their frame comes
/// before the descriptors. Otherwise, frames before the descriptors are skipped, if possible, so that
/// large pages of the descriptor map can map the descriptors.
fn carve(region: PfnRange, layout: &MapLayout) -> Result<Altmap, AltmapError> {
    let reserved = u64::from(layout.shares_tails());
    let carve_after = |skipped| Altmap::carve(region, reserved + skipped, layout);
    let large = PAGEBLOCK_FRAMES as u64;
    let has_same_alignment = |altmap: &Altmap| {
        altmap.map().start().number() % large
            == LAYOUT.descriptors.pages_of(altmap.data()).start % large
    };
    let aligned =
        (0..large).filter_map(|skipped| carve_after(skipped).ok()).find(has_same_alignment);
    aligned.filter(|_| !layout.shares_tails()).map_or_else(|| carve_after(0), Ok)
}

/// Allocates a frame for a page table.
fn allocate_table() -> Option<Pfn> {
    Some(alloc_frames(AllocRequest::frames(1)).ok()?.start())
}

fn single_frame(frame: Pfn) -> PfnRange {
    PfnRange::with_len(frame, 1).unwrap_or(PfnRange::EMPTY)
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Attach(error) => error.fmt(f),
            BindError::SharedTails(error) => error.fmt(f),
            BindError::Altmap(error) => error.fmt(f),
            BindError::NoMemory(error) => write!(f, "no memory for descriptors: {error}"),
            BindError::DescriptorMap(error) => error.fmt(f),
            BindError::Slots(error) => error.fmt(f),
            BindError::Describe(error) => error.fmt(f),
        }
    }
}
