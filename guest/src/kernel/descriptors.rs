//! Writes and checks the descriptors of RAM: 64 bytes for each frame, written when the frame is
//! added. Holes in the sections of boot memory have descriptors as well, so a scan of a section
//! need not check whether each frame has one.

use super::engine::Engine;
use super::hooks::KernelMapping;
use super::memory::{RAM_OWNER, alloc_frames};
use super::progress::WATCHDOG;
use super::this_cpu::ThisCpu;
use crate::arch::{FlushAll, LAYOUT};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use hotmem::geometry::SECTION_FRAMES;
use hotmem::{AllocRequest, Bytes, Pfn, PfnRange, State, Zone};
use hotmem_directmap::{DescriptorMap, DescriptorMapError};
use hotmem_guest::descriptor::{Owner, Page};
use hotmem_guest::pattern::mix_bits;
use hotmem_guest::tables::FrameTables;
use hotmem_guest::to_usize;
use hotmem_memmap::{Compound, Kind, MapLayout, Memmap, Slots};

/// The kind of memory in the descriptors of RAM and of holes.
const KIND: Kind = Kind::Generic;
/// The owner of holes between the kernel's RAM.
const HOLE_OWNER: Owner = Owner::hole(LAYOUT.descriptor_map_base);
/// The number of frames (8 GiB) whose descriptors are written between two reports of progress to
/// the watchdog.
const FRAMES_AT_ONCE: u64 = 64 * SECTION_FRAMES as u64;

/// A frame with an incorrect descriptor.
pub(crate) struct WrongDescriptor(Pfn);

/// Which descriptors to check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckedDescriptors {
    /// All descriptors.
    All,
    /// A few descriptors of each section.
    Sample,
}

impl Engine {
    /// Describes boot memory, and the holes in its sections. The descriptors lie in boot memory.
    pub(crate) fn describe_boot_memory(&mut self) -> Result<(), DescriptorMapError> {
        self.mapping().has_descriptors = true;
        let frame = || Some(alloc_frames(AllocRequest::frames(1)).ok()?.start());
        let mut from = Pfn::ZERO;
        while let Some(run) = next_run(&self.hotplug, from) {
            // Boot memory is never removed, so its descriptors may lie anywhere in boot memory.
            let mapping = self.mapping();
            let mut parts = run.chunks(SECTION_FRAMES as u64 / 2);
            parts.try_for_each(|part| mapping.write(part, &RAM_OWNER, frame))?;
            from = run.end();
        }
        let mut from = Pfn::ZERO;
        while let Some(hole) = next_hole(&self.hotplug, from) {
            self.mapping().write(hole, &HOLE_OWNER, frame)?;
            from = hole.end();
        }
        self.hotplug.settings.holes_described = true;
        Ok(())
    }

    /// Checks descriptors of RAM. Returns how many it checked.
    pub(crate) fn check_descriptors(
        &self,
        selection: CheckedDescriptors,
    ) -> Result<u64, WrongDescriptor> {
        let memmap = Memmap::new(KIND, Compound::SINGLE, &RAM_OWNER);
        let mut checked = 0;
        let mut from = Pfn::ZERO;
        while let Some(run) = next_run(&self.hotplug, from) {
            for part in run.chunks(SECTION_FRAMES as u64) {
                let (first, last) = (part.start().number(), part.end().number() - 1);
                let sampled = [first, first + mix_bits(first) % part.frames(), last];
                let (range, sampled) = match selection {
                    CheckedDescriptors::All => (first..last + 1, &[][..]),
                    CheckedDescriptors::Sample => (0..0, &sampled[..]),
                };
                for pfn in range.chain(sampled.iter().copied()).filter_map(Pfn::new) {
                    if read_descriptor(pfn) != RAM_OWNER.page(pfn, KIND, memmap.layout()) {
                        return Err(WrongDescriptor(pfn));
                    }
                    checked += 1;
                }
                WATCHDOG.progress();
            }
            from = run.end();
        }
        Ok(checked + self.check_holes()?)
    }

    /// Checks the descriptors of all holes in runs of online memory. Returns how many it checked.
    fn check_holes(&self) -> Result<u64, WrongDescriptor> {
        let layout = *Memmap::new(KIND, Compound::SINGLE, &HOLE_OWNER).layout();
        let (mut checked, mut wrong) = (0, None);
        let mut check = |hole: PfnRange| {
            for pfn in (hole.start().number()..hole.end().number()).filter_map(Pfn::new) {
                if read_descriptor(pfn) != HOLE_OWNER.page(pfn, KIND, &layout) {
                    wrong.get_or_insert(WrongDescriptor(pfn));
                }
                checked += 1;
            }
            WATCHDOG.progress();
        };
        for node in self.hotplug.nodes() {
            for zone in Zone::ALL {
                self.hotplug.online_runs(node, zone, |run| {
                    let mut remaining = run;
                    while !remaining.is_empty() {
                        let (part, state) =
                            self.hotplug.state_at(remaining.start(), remaining.end());
                        if !is_ram(state) {
                            check(part);
                        }
                        remaining = remaining.split_at(part.end()).1;
                    }
                });
            }
        }
        wrong.map_or(Ok(checked), Err)
    }
}

impl KernelMapping {
    /// Maps those descriptors of `range` that are not mapped yet. Then writes all descriptors of
    /// `range`.
    pub(super) fn write(
        &mut self,
        range: PfnRange,
        owner: &Owner,
        frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), DescriptorMapError> {
        self.space.descriptor_map_mut().map_ram(range, frame)?;
        let memmap = Memmap::new(KIND, Compound::SINGLE, owner);
        for part in range.chunks(FRAMES_AT_ONCE) {
            // SAFETY: `map_ram` has mapped the descriptors of `part`, nothing else uses them, and
            // they stay mapped as long as the memory that they describe is present.
            let slots = unsafe { slots(part, memmap.layout()) };
            let written = slots.and_then(|slots| memmap.describe(slots).ok());
            self.bytes_described = self.bytes_described + written.unwrap_or(Bytes::ZERO);
            WATCHDOG.progress();
        }
        Ok(())
    }

    /// Returns the descriptor map, if RAM has descriptors.
    pub(super) fn map_of_ram(&mut self) -> Option<&mut DescriptorMap<FrameTables, FlushAll>> {
        self.has_descriptors.then(|| self.space.descriptor_map_mut())
    }
}

/// Returns the descriptors of the frames of `range`.
///
/// # Safety
/// As for [`Slots::mapped`].
unsafe fn slots(range: PfnRange, layout: &MapLayout) -> Option<Slots<'static, Page>> {
    let base =
        core::ptr::with_exposed_provenance_mut(to_usize(RAM_OWNER.descriptor(range.start())));
    // SAFETY: the caller keeps the promises of `Slots::mapped`.
    unsafe { Slots::mapped(range, NonNull::new(base)?, layout) }.ok()
}

/// Reads the descriptor of present RAM or of a described hole.
fn read_descriptor(pfn: Pfn) -> Page {
    let page = core::ptr::with_exposed_provenance::<MaybeUninit<Page>>(to_usize(
        RAM_OWNER.descriptor(pfn),
    ));
    // SAFETY: the descriptors of present RAM, and of holes in runs of online memory, are mapped and
    // written, and nothing changes them.
    unsafe { page.read().assume_init() }
}

/// Returns the lowest run of present RAM at or above `from`.
fn next_run(
    hotplug: &hotmem::Hotplug<'static, ThisCpu, KernelMapping>,
    from: Pfn,
) -> Option<PfnRange> {
    let regions = hotplug.regions().map(|(_, region)| region.split_at(from).1);
    regions.filter_map(|part| first_run(hotplug, part, is_ram)).min_by_key(|run| run.start())
}

/// Returns the lowest hole at or above `from` in a section that has RAM.
fn next_hole(
    hotplug: &hotmem::Hotplug<'static, ThisCpu, KernelMapping>,
    from: Pfn,
) -> Option<PfnRange> {
    let has_ram = |section: &PfnRange| first_run(hotplug, *section, is_ram).is_some();
    let holes = hotplug.regions().filter_map(|(_, region)| {
        let sections = region.align_outward(SECTION_FRAMES as u64).chunks(SECTION_FRAMES as u64);
        let mut parts = sections.filter(has_ram).map(|section| section.split_at(from).1);
        parts.find_map(|part| first_run(hotplug, part, |state| !is_ram(state)))
    });
    holes.min_by_key(|hole| hole.start())
}

/// Returns the first run in `range` for whose state `wanted` is true.
fn first_run(
    hotplug: &hotmem::Hotplug<'static, ThisCpu, KernelMapping>,
    range: PfnRange,
    wanted: impl Fn(State) -> bool,
) -> Option<PfnRange> {
    let mut remaining = range;
    while !remaining.is_empty() {
        let (run, state) = hotplug.state_at(remaining.start(), remaining.end());
        if wanted(state) {
            return Some(run);
        }
        remaining = remaining.split_at(run.end()).1;
    }
    None
}

fn is_ram(state: State) -> bool {
    matches!(state, State::Offline | State::Online | State::OnlineMovable)
}

impl fmt::Display for WrongDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {} has {:?} as its descriptor", self.0, read_descriptor(self.0))
    }
}
