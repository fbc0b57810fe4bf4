//! A window of virtual addresses, behind each page of which there may be any frame.
//!
//! Three levels of page tables for pages of 4 KiB, below one entry of the root: 512 GiB of
//! addresses that nobody else uses. Who moves a frame writes its copy's number over its own, and
//! whoever uses the page sees the same bytes at the same address.
//!
//! What is unmapped or replaced shows only after the TLB is flushed, which is the caller's to do.

use crate::frame_words::{FRAME_WORDS, FrameWords};
use crate::owned::NoTable;
use hotmem::Pfn;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Pages of a window.
pub const PAGES: u64 = FRAME_WORDS * FRAME_WORDS * FRAME_WORDS;

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
/// Accessed and dirty, set from the start so that no access has to set them.
const USED: u64 = 1 << 5 | 1 << 6;
/// The first of the bits that the CPU leaves to the kernel: the frame is to stay where it is.
const PINNED: u64 = 1 << 9;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const TABLE: u64 = PRESENT | WRITABLE | USED;

/// The tables of a window. Pages are numbered from its start.
#[derive(Debug)]
pub struct Window {
    top: Pfn,
    memory: FrameWords,
}

impl Window {
    /// An empty window whose table of the highest level is to be in `top`; see [`Window::entry`].
    ///
    /// # Safety
    /// `top` and every frame that [`Window::map`] is given for a table are reached through
    /// `memory` for as long as the value lives, and nobody else writes to them.
    #[must_use]
    pub unsafe fn new(top: Pfn, memory: FrameWords) -> Self {
        let window = Window { top, memory };
        window.clear(top);
        window
    }

    /// What the root's entry has to be for the window to show.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.top.phys_addr() | TABLE
    }

    /// Puts a frame behind a page that has none, and makes the tables that are missing.
    ///
    /// # Errors
    /// [`NoTable`]; nothing is mapped.
    pub fn map(
        &mut self,
        page: u64,
        frame: Pfn,
        mut table_frame: impl FnMut() -> Option<Pfn>,
    ) -> Result<(), NoTable> {
        if page >= PAGES {
            return Err(NoTable);
        }
        let mut table = self.top;
        for level in [2, 1] {
            let entry = self.read(table, index(page, level));
            table = if entry & PRESENT != 0 {
                frame_of(entry).ok_or(NoTable)?
            } else {
                let new = table_frame().ok_or(NoTable)?;
                self.clear(new);
                self.write(table, index(page, level), new.phys_addr() | TABLE);
                new
            };
        }
        self.write(table, index(page, 0), frame.phys_addr() | TABLE);
        Ok(())
    }

    /// The frame behind a page, hidden ones included.
    #[must_use]
    pub fn frame(&self, page: u64) -> Option<Pfn> {
        let entry = self.read(self.table(page)?, index(page, 0));
        frame_of(entry).filter(|_| entry != 0)
    }

    /// Puts another frame behind a page that has one.
    pub fn replace(&mut self, page: u64, frame: Pfn) {
        self.change(page, |entry| entry & !ADDRESS | frame.phys_addr());
    }

    /// Takes the page from sight and remembers its frame.
    pub fn hide(&mut self, page: u64) {
        self.change(page, |entry| entry & !PRESENT);
    }

    /// Forgets the frame behind a page, and returns it.
    pub fn take(&mut self, page: u64) -> Option<Pfn> {
        let frame = self.frame(page)?;
        self.change(page, |_| 0);
        Some(frame)
    }

    /// Whether the frame behind the page has to stay where it is.
    #[must_use]
    pub fn is_pinned(&self, page: u64) -> bool {
        self.table(page).is_some_and(|table| self.read(table, index(page, 0)) & PINNED != 0)
    }

    /// Has it stay, or lets it go.
    pub fn pin(&mut self, page: u64, pinned: bool) {
        let bit = if pinned { PINNED } else { 0 };
        self.change(page, |entry| entry & !PINNED | bit);
    }

    fn change(&mut self, page: u64, change: impl FnOnce(u64) -> u64) {
        if let Some(table) = self.table(page) {
            let entry = self.read(table, index(page, 0));
            if entry != 0 {
                self.write(table, index(page, 0), change(entry));
            }
        }
    }

    /// The table of the lowest level that has this page's entry.
    fn table(&self, page: u64) -> Option<Pfn> {
        let mut table = self.top;
        for level in [2, 1] {
            let entry = self.read(table, index(page, level));
            table = frame_of(entry).filter(|_| page < PAGES && entry & PRESENT != 0)?;
        }
        Some(table)
    }

    fn clear(&self, table: Pfn) {
        (0..FRAME_WORDS).for_each(|index| self.write(table, index, 0));
    }

    fn read(&self, table: Pfn, index: u64) -> u64 {
        // SAFETY: tables are the window's, see `new`; indices are below `FRAME_WORDS`.
        unsafe { self.memory.read(table, index) }
    }

    fn write(&self, table: Pfn, index: u64, entry: u64) {
        // SAFETY: as above.
        unsafe { self.memory.write(table, index, entry) }
    }
}

fn frame_of(entry: u64) -> Option<Pfn> {
    Pfn::containing(entry & ADDRESS)
}

fn index(page: u64, level: u32) -> u64 {
    page >> (9 * level) & (FRAME_WORDS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory for tables: frame 0 is the top, the others come as they are asked for.
    struct Tables {
        frames: Vec<[u64; 512]>,
        next: u64,
    }

    impl Tables {
        fn new() -> (Tables, Window) {
            let mut frames = vec![[u64::MAX; 512]; 9];
            let offset = frames.as_mut_ptr().expose_provenance();
            // SAFETY: the frames live as long as the test and are reached through the window only.
            let window = unsafe { Window::new(Pfn::ZERO, FrameWords::at_offset(offset)) };
            (Tables { frames, next: 1 }, window)
        }

        fn frame(&mut self) -> Option<Pfn> {
            let frame = self.next;
            self.next += 1;
            (frame < self.frames.len() as u64).then(|| pfn(frame))
        }
    }

    fn pfn(number: u64) -> Pfn {
        Pfn::new(number).unwrap()
    }

    #[test]
    fn pages_keep_their_frames_apart() {
        let (mut tables, mut window) = Tables::new();
        assert_eq!(window.entry(), TABLE);
        let pages = [0, 1, 511, 512, 512 * 512 - 1, 512 * 512, PAGES - 1];
        for (frame, &page) in (1000..).zip(&pages) {
            assert_eq!(window.frame(page), None);
            window.map(page, pfn(frame), || tables.frame()).unwrap();
        }
        // Two for each of the pages 0, 512 * 512 and PAGES - 1; one more for 512 and 512 * 512 - 1.
        assert_eq!(tables.next, 9);
        for (frame, &page) in (1000..).zip(&pages) {
            assert_eq!(window.frame(page), Some(pfn(frame)), "page {page}");
        }
        assert_eq!(window.frame(2), None);
        assert_eq!(window.frame(PAGES), None);
        assert_eq!(window.map(PAGES, pfn(1), || None), Err(NoTable));
    }

    #[test]
    fn a_frame_is_replaced_hidden_and_taken() {
        let (mut tables, mut window) = Tables::new();
        window.map(7, pfn(100), || tables.frame()).unwrap();
        window.pin(7, true);
        window.replace(7, pfn(200));
        assert_eq!(window.frame(7), Some(pfn(200)));
        assert!(window.is_pinned(7) && !window.is_pinned(8));
        window.pin(7, false);
        assert!(!window.is_pinned(7));
        window.hide(7);
        assert_eq!(tables.frames[2][7] & PRESENT, 0);
        assert_eq!(window.take(7), Some(pfn(200)));
        assert_eq!(window.take(7), None);
        // Nothing comes of changing what is not there.
        window.replace(7, pfn(300));
        window.pin(7, true);
        assert_eq!((window.frame(7), window.is_pinned(7)), (None, false));
    }

    #[test]
    fn without_tables_nothing_is_mapped() {
        let (mut tables, mut window) = Tables::new();
        assert_eq!(window.map(3, pfn(100), || None), Err(NoTable));
        let mut one = [tables.frame(), None].into_iter();
        assert_eq!(window.map(3, pfn(100), || one.next().flatten()), Err(NoTable));
        assert_eq!(window.frame(3), None);
        window.map(3, pfn(100), || tables.frame()).unwrap();
        assert_eq!(window.frame(3), Some(pfn(100)));
    }
}
