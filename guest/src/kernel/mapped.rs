//! Mapped memory: pages of a window whose frames are movable.
//!
//! The reverse map names the page's address as the owner of each frame. Memory under pages in use
//! can be unplugged: the pages are made not present, copied, and mapped to other frames.

use super::fatal::give_up;
use super::memory::{AddressSpace, DIRECT_MAP_OFFSET, FRAME_WORDS, FRAMES, FlushAll, alloc_frames};
use super::progress::WATCHDOG;
use super::this_cpu::ThisCpu;
use core::num::NonZeroU64;
use core::ops::Range;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocRequest, Bytes, Migration, NodeChoice, Pfn, PfnRange};
use hotmem_directmap::{PAGE_BYTES, Window};
use hotmem_guest::tables::FrameTables;
use hotmem_guest::{frame_words, to_usize};
use hotmem_pgtable::{Flags, Level, MoveError};
use hotmem_port::{LinearMap, Owner, ReverseMap};

/// The reverse map: the owner of each frame is the address of its page.
static REVERSE_MAP: ReverseMap<'static, ThisCpu> =
    // SAFETY: the direct map maps all memory that is online.
    unsafe { ReverseMap::new(&FRAMES, LinearMap::at_address(DIRECT_MAP_OFFSET)) };

/// The maximal number of pages that are moved together: those in a pageblock.
pub(crate) const TOGETHER: usize = PAGEBLOCK_FRAMES;

/// A window and the frames of its pages.
#[derive(Debug)]
pub(crate) struct Mapped {
    window: Window<FrameTables, FlushAll>,
    /// The initial flags of its entries.
    flags: Flags,
    /// The address below which its page tables lie, in memory that is never removed.
    tables_below: Pfn,
    moved: u64,
}

impl Mapped {
    /// Makes a window at `base`, with no pages mapped.
    pub(crate) fn new(space: &AddressSpace, base: u64, flags: Flags, tables_below: Pfn) -> Self {
        Mapped { window: space.window(base), flags, tables_below, moved: 0 }
    }

    /// Returns the amount of memory that was migrated under its pages so far.
    pub(crate) fn moved(&self) -> Bytes {
        Bytes(self.moved * PAGE_BYTES)
    }

    /// Returns the window.
    pub(crate) fn window(&mut self) -> &mut Window<FrameTables, FlushAll> {
        &mut self.window
    }

    /// Maps a new frame at a page. Returns `None` if there is no memory.
    pub(crate) fn map(&mut self, page: u64) -> Option<()> {
        let frame = take_frame(AllocRequest::frames(1).movable(), self.window.address(page))?;
        let below = AllocRequest::frames(1).within(..self.tables_below);
        let new_table = || Some(alloc_frames(below).ok()?.start());
        let mapped = self.window.map(page, frame, self.flags, new_table);
        mapped.inspect_err(|_| free_frames(frame)).ok()
    }

    /// Unmaps pages, and frees their frames.
    pub(crate) fn unmap(&mut self, pages: Range<u64>) {
        // The frames are freed after the flush of each part.
        for start in pages.clone().step_by(TOGETHER) {
            let end = pages.end.min(start + TOGETHER as u64);
            let mut runs = [PfnRange::EMPTY; TOGETHER];
            let mut free = runs.iter_mut();
            self.window.unmap(start..end, |run| {
                if let (Some(free), Some(frames)) = (free.next(), run.frames()) {
                    *free = frames;
                }
            });
            runs.into_iter().flat_map(each).for_each(free_frames);
        }
    }

    /// Migrates those of these frames, a run within one pageblock, that pages of this window map.
    /// Returns `None` if there are none.
    pub(crate) fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        let mut pages = [0; TOGETHER];
        let mut len = 0;
        for (page, slot) in self.pages_on(used).zip(&mut pages) {
            *slot = page;
            len += 1;
        }
        if len == 0 {
            return None;
        }
        let elsewhere = elsewhere(used.start());
        Some(match self.move_pages(&pages[..len], elsewhere) {
            Ok(()) => Migration::Moved,
            Err(obstacle) => obstacle,
        })
    }

    /// Moves pages to frames that are allocated by this request, as many as possible: at most
    /// [`TOGETHER`], and at least one.
    pub(crate) fn move_pages(&mut self, pages: &[u64], to: AllocRequest) -> Result<(), Migration> {
        let mut frames = [Pfn::ZERO; TOGETHER];
        let (mut len, mut obstacle) = (0, Migration::Retry);
        for (&page, place) in pages.iter().zip(&mut frames) {
            let Some(frame) = self.destination(page, to).map_err(|why| obstacle = why).ok() else {
                break;
            };
            *place = frame;
            len += 1;
        }
        if len == 0 {
            return Err(obstacle);
        }
        let moved = self.window.move_pages(pages[..len].iter().copied(), |moving| {
            for (index, to) in frames[..len].iter_mut().enumerate() {
                let from =
                    moving.page(index).and_then(|page| page.entry.frame(Level::L1)).unwrap_or(*to);
                // SAFETY: both frames belong to the page, are mapped, and differ. No CPU writes to
                // the page while it moves.
                unsafe {
                    let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(*to));
                    source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
                }
                moving.place(index, *to);
                // Remember the old frame, which is freed below.
                *to = from;
            }
        });
        match moved {
            Ok(()) => {}
            Err(MoveError::Refused(_)) => give_up("the reverse map names a page without a frame"),
            Err(MoveError::Hidden { .. }) => give_up("a moved page's table is gone"),
        }
        frames[..len].iter().copied().for_each(free_frames);
        self.moved += len as u64;
        WATCHDOG.progress();
        Ok(())
    }

    /// Allocates a frame to move the page to.
    fn destination(&self, page: u64, want: AllocRequest) -> Result<Pfn, Migration> {
        if self.window.is_pinned(page) {
            return Err(Migration::Unmovable("a page pinned by the kernel"));
        }
        take_frame(want, self.window.address(page)).ok_or(Migration::Retry)
    }

    /// Returns the pages that map these frames. Each page is an owner of its own, so each part is
    /// one frame.
    fn pages_on(&self, frames: PfnRange) -> impl Iterator<Item = u64> + '_ {
        REVERSE_MAP.runs(frames).filter_map(|(_, owner)| self.window.page_of(owner?.0.get()))
    }
}

/// Requests a frame to migrate `from` to, preferably of another node, because more memory of this
/// node may be about to be removed.
pub(crate) fn elsewhere(from: Pfn) -> AllocRequest {
    AllocRequest::frames(1)
        .movable()
        .node(NodeChoice::Leaving(FRAMES.node_of(from).unwrap_or_default()))
}

/// Allocates a frame, and records the page at this address as its owner.
fn take_frame(want: AllocRequest, address: u64) -> Option<Pfn> {
    let frame = alloc_frames(want).ok()?;
    if REVERSE_MAP.set(frame, Owner(NonZeroU64::new(address)?)).is_err() {
        free_frames(frame.start());
        return None;
    }
    Some(frame.start())
}

fn free_frames(frame: Pfn) {
    if let Some(frame) = PfnRange::with_len(frame, 1) {
        REVERSE_MAP.clear(frame);
        // SAFETY: the frame was allocated by `take_frame`, is not mapped any more, and is freed
        // once, so this cannot fail.
        let _ = unsafe { FRAMES.free_raw_filled(frame) };
    }
}

fn each(frames: PfnRange) -> impl Iterator<Item = Pfn> {
    (frames.start().number()..frames.end().number()).filter_map(Pfn::new)
}
