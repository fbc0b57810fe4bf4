//! Memory behind addresses: pages of a window, with movable frames that stand in nobody's way.
//!
//! Each frame's owner is its page's address: that is the reverse map. Memory under pages in use is
//! unplugged all the same: they are taken out of sight, copied, and shown again elsewhere.

use super::fatal::give_up;
use super::memory::{AddressSpace, FRAME_WORDS, FRAMES, FlushAll, alloc_frames};
use super::progress::WATCHDOG;
use super::this_cpu::ThisCpu;
use core::ops::Range;
use hotmem::geometry::PAGEBLOCK_FRAMES;
use hotmem::{AllocRequest, Bytes, Migration, Owner, Pfn, PfnRange, ReverseMap};
use hotmem_directmap::{PAGE_BYTES, Window};
use hotmem_guest::tables::FrameTables;
use hotmem_guest::{frame_words, to_usize};
use hotmem_pgtable::{Flags, Level, MoveError};

/// Whose each frame is: a page of a window, by its address.
static REVERSE_MAP: ReverseMap<'static, ThisCpu> = ReverseMap::new(&FRAMES);

/// Pages that are moved together: what there may be in a pageblock.
pub(crate) const TOGETHER: usize = PAGEBLOCK_FRAMES;

/// A window, and the frames behind its pages.
#[derive(Debug)]
pub(crate) struct Mapped {
    window: Window<FrameTables, FlushAll>,
    /// What its entries have at first.
    flags: Flags,
    /// Tables lie below, in memory that does not go.
    tables_below: Pfn,
    moved: u64,
}

impl Mapped {
    /// Makes a window at `base`, with nothing behind it.
    pub(crate) fn new(space: &AddressSpace, base: u64, flags: Flags, tables_below: Pfn) -> Self {
        Mapped { window: space.window(base), flags, tables_below, moved: 0 }
    }

    /// Returns what was moved under its pages so far.
    pub(crate) fn moved(&self) -> Bytes {
        Bytes(self.moved * PAGE_BYTES)
    }

    /// Returns the pages, and where they are seen.
    pub(crate) fn window(&mut self) -> &mut Window<FrameTables, FlushAll> {
        &mut self.window
    }

    /// Puts a frame behind a page that has none; `None` if there is no memory for it.
    pub(crate) fn map(&mut self, page: u64) -> Option<()> {
        let frame = take_frame(AllocRequest::frames(1).movable(), self.window.address(page))?;
        let below = AllocRequest::frames(1).below(self.tables_below);
        let new_table = || Some(alloc_frames(below).ok()?.start());
        let mapped = self.window.map(page, frame, self.flags, new_table);
        mapped.inspect_err(|_| give_back(frame)).ok()
    }

    /// Takes the frames away from behind pages.
    pub(crate) fn unmap(&mut self, pages: Range<u64>) {
        // They are free once a part has been flushed.
        for start in pages.clone().step_by(TOGETHER) {
            let end = pages.end.min(start + TOGETHER as u64);
            let mut runs = [PfnRange::EMPTY; TOGETHER];
            let mut free = runs.iter_mut();
            self.window.unmap(start..end, |run| {
                if let (Some(free), Some(frames)) = (free.next(), run.frames()) {
                    *free = frames;
                }
            });
            runs.into_iter().flat_map(each).for_each(give_back);
        }
    }

    /// Returns the engine wants these frames, a run within one pageblock, to be free. Those that
    /// are behind pages of this window are moved elsewhere; `None` if there are none among them.
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

    /// Moves pages to frames that are allocated for them like this, as far as there are some: at
    /// most [`TOGETHER`], and at least one.
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
                // SAFETY: both frames are the page's, mapped, and two different ones. No CPU writes
                // to the page while it is moving.
                unsafe {
                    let (source, copy) = (FRAME_WORDS.pointer(from), FRAME_WORDS.pointer(*to));
                    source.copy_to_nonoverlapping(copy, to_usize(frame_words::FRAME_WORDS));
                }
                moving.place(index, *to);
                // What is left behind.
                *to = from;
            }
        });
        match moved {
            Ok(()) => {}
            Err(MoveError::Refused(_)) => give_up("a frame's owner is a page without one"),
            Err(MoveError::Hidden { .. }) => give_up("a moved page's table is gone"),
        }
        frames[..len].iter().copied().for_each(give_back);
        self.moved += len as u64;
        WATCHDOG.progress();
        Ok(())
    }

    /// Returns a frame to move the page to.
    fn destination(&self, page: u64, want: AllocRequest) -> Result<Pfn, Migration> {
        if self.window.is_pinned(page) {
            return Err(Migration::Pinned("a page pinned by the kernel"));
        }
        take_frame(want, self.window.address(page)).ok_or(Migration::Retry)
    }

    /// Returns the pages whose frames are among these. Each page is an owner of its own, so each
    /// part is one frame.
    fn pages_on(&self, frames: PfnRange) -> impl Iterator<Item = u64> + '_ {
        REVERSE_MAP.runs(frames).filter_map(|(_, owner)| self.window.page_of(owner?.number()))
    }
}

/// Returns a frame for what has to leave `from`: another node's, since more of this one's may be
/// about to go.
pub(crate) fn elsewhere(from: Pfn) -> AllocRequest {
    AllocRequest::frames(1).movable().leaving(FRAMES.node_of(from).unwrap_or_default())
}

/// Returns a frame that is the page's at this address.
fn take_frame(want: AllocRequest, address: u64) -> Option<Pfn> {
    let frame = alloc_frames(want).ok()?;
    if REVERSE_MAP.set(frame, Owner::new(address)?).is_err() {
        give_back(frame.start());
        return None;
    }
    Some(frame.start())
}

fn give_back(frame: Pfn) {
    if let Some(frame) = PfnRange::with_len(frame, 1) {
        REVERSE_MAP.clear(frame);
        // SAFETY: allocated by `take_frame` and mapped no more; freed once, so this cannot fail.
        let _ = unsafe { FRAMES.free_raw_filled(frame) };
    }
}

fn each(frames: PfnRange) -> impl Iterator<Item = Pfn> {
    (frames.start().number()..frames.end().number()).filter_map(Pfn::new)
}
