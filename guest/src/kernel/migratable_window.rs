//! Maps pages in a window to movable frames, and migrates these frames while the pages are in use.
//!
//! The reverse map records the address of the page that maps each frame. To migrate frames, their
//! pages are made not present, copied, and mapped to other frames.

use super::fatal::{give_up, must};
use super::memory::{AddressSpace, DIRECT_MAP_OFFSET, FRAME_WORDS, FRAMES, alloc_frames};
use super::progress::WATCHDOG;
use super::this_cpu::ThisCpu;
use crate::arch::FlushAll;
use crate::arch::paging::supported;
use core::num::NonZeroU64;
use core::ops::Range;
use hotmem::{AllocRequest, Bytes, Migration, NodeChoice, Pfn, PfnRange};
use hotmem_directmap::{Attributes, PAGE_BYTES, Window};
use hotmem_guest::frame_words::{self, each_frame};
use hotmem_guest::tables::FrameTables;
use hotmem_guest::to_usize;
use hotmem_pgtable::Level;
use hotmem_pgtable::target::{Batch, MoveError};
use hotmem_port::{FrameOwner, LinearMap, ReverseMap};

/// The reverse map. The owner of a frame is the address of the page that maps the frame.
static REVERSE_MAP: ReverseMap<'static, ThisCpu> =
    // SAFETY: the direct map maps all memory that is online.
    unsafe { ReverseMap::new(&FRAMES, LinearMap::at_address(DIRECT_MAP_OFFSET)) };

/// The maximal number of pages that are moved or unmapped together. Lists of them lie on the stack.
pub(crate) const BATCH_PAGES: usize = 128;

/// A window and the frames of its pages.
#[derive(Debug)]
pub(crate) struct MigratableWindow {
    window: Window<'static, FrameTables, FlushAll>,
    /// The initial attributes of the pages.
    attributes: Attributes,
    /// The frame below which the window's page tables lie, in memory that is never removed.
    tables_below: Pfn,
    moved_pages: u64,
}

impl MigratableWindow {
    /// Makes a window at `base`, with no pages mapped.
    pub(crate) fn new(
        space: &AddressSpace,
        base: u64,
        attributes: Attributes,
        tables_below: Pfn,
        batch: &'static mut Batch,
    ) -> Self {
        let (window, attributes) = (space.window(base, batch), supported(attributes));
        MigratableWindow { window, attributes, tables_below, moved_pages: 0 }
    }

    /// Returns the amount of memory that was migrated under the pages so far.
    pub(crate) fn moved_bytes(&self) -> Bytes {
        Bytes(self.moved_pages * PAGE_BYTES)
    }

    /// Returns the window.
    pub(crate) fn window(&mut self) -> &mut Window<'static, FrameTables, FlushAll> {
        &mut self.window
    }

    /// Maps a new frame at a page. Returns `None` if there is no memory.
    pub(crate) fn map(&mut self, page: u64) -> Option<()> {
        let frame =
            allocate_frame_for(AllocRequest::frames(1).movable(), self.window.address(page))?;
        let below = AllocRequest::frames(1).within(..self.tables_below);
        let new_table = || Some(alloc_frames(below).ok()?.start());
        let mapped = self.window.map(page, frame, self.attributes, new_table);
        mapped.inspect_err(|_| free_frame(frame)).ok()
    }

    /// Unmaps pages, and frees their frames.
    pub(crate) fn unmap(&mut self, pages: Range<u64>) {
        // Frames may be reused only after `Window::unmap` returns, so collect the frames of each
        // part, and free them then.
        for start in pages.clone().step_by(BATCH_PAGES) {
            let end = pages.end.min(start + BATCH_PAGES as u64);
            let mut runs = [PfnRange::EMPTY; BATCH_PAGES];
            let mut free = runs.iter_mut();
            self.window.unmap(start..end, |run| {
                if let (Some(free), Some(frames)) = (free.next(), run.frames()) {
                    *free = frames;
                }
            });
            for &run in &runs {
                each_frame(run).for_each(free_frame);
            }
        }
    }

    /// Migrates the frames of `used` that pages of this window map. `used` is a run within one
    /// pageblock. Returns `None` if no page of this window maps a frame of `used`.
    pub(crate) fn migrate(&mut self, used: PfnRange) -> Option<Migration> {
        let mut pages = [0; BATCH_PAGES];
        let mut count = 0;
        for (page, entry) in self.pages_on(used).zip(&mut pages) {
            *entry = page;
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let request = request_elsewhere(used.start());
        Some(match self.move_pages(&pages[..count], request) {
            Ok(()) => Migration::Moved,
            Err(obstacle) => obstacle,
        })
    }

    /// Moves pages to frames that `request` allocates. Moves as many of `pages` as
    /// there are frames for, at most [`BATCH_PAGES`]. An error means that no page was moved.
    pub(crate) fn move_pages(
        &mut self,
        pages: &[u64],
        request: AllocRequest,
    ) -> Result<(), Migration> {
        let mut frames = [Pfn::ZERO; BATCH_PAGES];
        let (mut count, mut obstacle) = (0, Migration::Retry);
        for (&page, destination) in pages.iter().zip(&mut frames) {
            let Some(frame) =
                self.allocate_destination(page, request).map_err(|error| obstacle = error).ok()
            else {
                break;
            };
            *destination = frame;
            count += 1;
        }
        if count == 0 {
            return Err(obstacle);
        }
        let moved = self.window.move_pages(pages[..count].iter().copied(), |moving| {
            for (index, frame) in frames[..count].iter_mut().enumerate() {
                let new = *frame;
                let old =
                    moving.page(index).and_then(|page| page.entry.frame(Level::L1)).unwrap_or(new);
                // SAFETY: `old` and `new` belong to the page, are mapped, and differ. No CPU writes
                // to the page while the page moves.
                unsafe {
                    let (source, copy) = (FRAME_WORDS.pointer(old), FRAME_WORDS.pointer(new));
                    source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
                }
                moving.place(index, new);
                // The old frame is freed below.
                *frame = old;
            }
        });
        match moved {
            Ok(()) => {}
            Err(MoveError::Refused(_)) => give_up("the reverse map names a page without a frame"),
            Err(MoveError::NotPresent { .. }) => give_up("a moved page's table is gone"),
        }
        frames[..count].iter().copied().for_each(free_frame);
        self.moved_pages += count as u64;
        WATCHDOG.progress();
        Ok(())
    }

    /// Allocates a frame to which `page` is moved.
    fn allocate_destination(&self, page: u64, request: AllocRequest) -> Result<Pfn, Migration> {
        if self.window.is_pinned(page) {
            return Err(Migration::Unmovable("a page pinned by the kernel"));
        }
        allocate_frame_for(request, self.window.address(page)).ok_or(Migration::Retry)
    }

    /// Returns the pages of this window that map frames of `frames`. Each frame has another owner,
    /// so each run of the reverse map is one frame.
    fn pages_on(&self, frames: PfnRange) -> impl Iterator<Item = u64> + '_ {
        REVERSE_MAP.runs(frames).filter_map(|(_, owner)| self.window.page_of(owner?.0.get()))
    }
}

/// Returns a request for a frame to which `from` is migrated. The request prefers other nodes,
/// because more memory of the node of `from` may be removed next.
pub(crate) fn request_elsewhere(from: Pfn) -> AllocRequest {
    AllocRequest::frames(1)
        .movable()
        .node(NodeChoice::Avoiding(FRAMES.node_of(from).unwrap_or_default()))
}

/// Allocates a frame, and records the page at `address` as the frame's owner.
fn allocate_frame_for(request: AllocRequest, address: u64) -> Option<Pfn> {
    let frame = alloc_frames(request).ok()?;
    if REVERSE_MAP.set(frame, FrameOwner(NonZeroU64::new(address)?)).is_err() {
        free_frame(frame.start());
        return None;
    }
    Some(frame.start())
}

fn free_frame(frame: Pfn) {
    if let Some(frame) = PfnRange::with_len(frame, 1) {
        REVERSE_MAP.clear(frame);
        // SAFETY: `allocate_frame_for` has allocated the frame, no page maps the frame any more,
        // and the frame is freed once, so freeing cannot fail.
        must("pages", unsafe { FRAMES.fill_and_free_raw(frame) });
    }
}
