//! Retires the chunks of removed memory: hides them from look-ups, and later puts them back or
//! frees them.
//!
//! A CPU that has looked up a chunk may use its words at any later time: it may try to claim
//! pageblocks, find none, and then clear the bits above. So a retired chunk keeps its contents, and
//! memory that is added at its place later gets the same chunk back. Only the kernel can know when
//! all calls that may have looked up the chunk have returned. After that, the memory of the chunk
//! can be used for something else.

use super::Directory;
use super::id::SectionId;
#[cfg(not(loom))]
use super::pieces::Chunk;
use super::sizes::LEAF_CHUNKS;
use crate::sync::Ordering;
#[cfg(not(loom))]
use crate::words::BitmapFrame;
use crate::words::Section;
use core::ptr::null_mut;

impl Directory {
    /// Hides the chunk of a section from look-ups, if the section has one and the chunk has no
    /// memory. Memory that is added at its place gets the chunk back. For the control path only.
    pub(crate) fn retire(&self, id: SectionId) {
        let Some(leaf) = self.leaf(id.chunk() / LEAF_CHUNKS) else { return };
        let (Some(chunk), Some(head)) = (self.chunk(id.chunk()), self.head(id.chunk())) else {
            return;
        };
        if chunk.sections().iter().all(is_unused) {
            let at = &leaf.chunks[id.chunk() % LEAF_CHUNKS];
            // Relaxed: only the control path reads this pointer, and the chunk was published
            // already.
            head.retired.store(at.load(Ordering::Relaxed), Ordering::Relaxed);
            at.store(null_mut(), Ordering::Relaxed);
        }
    }

    /// Puts a retired chunk back. For the control path only.
    pub(super) fn put_back(&self, id: SectionId) {
        let Some(leaf) = self.leaf(id.chunk() / LEAF_CHUNKS) else { return };
        let Some(head) = self.head(id.chunk()) else { return };
        let retired = head.retired.load(Ordering::Relaxed);
        if !retired.is_null() {
            // Release: a reader that finds the pointer finds the piece made.
            leaf.chunks[id.chunk() % LEAF_CHUNKS].store(retired, Ordering::Release);
            head.retired.store(null_mut(), Ordering::Relaxed);
        }
    }

    /// Returns whether the chunk of a section is retired.
    #[cfg(not(loom))]
    pub(super) fn is_retired(&self, id: SectionId) -> bool {
        let retired = |head: &super::Head| head.retired.load(Ordering::Relaxed);
        self.head(id.chunk()).is_some_and(|head| !retired(head).is_null())
    }

    /// Iterates over the sections of all chunks that are retired. Cost: O(chunks).
    ///
    /// # Safety
    /// Nobody frees the memory of retired chunks meanwhile.
    #[cfg(not(loom))]
    pub(crate) unsafe fn retired(&self) -> impl Iterator<Item = (SectionId, &Section)> {
        let chunks = (0..super::ROOT_LEAVES).flat_map(move |leaf| {
            let all = leaf * LEAF_CHUNKS..(leaf + 1) * LEAF_CHUNKS;
            all.take_while(move |_| self.leaf(leaf).is_some())
        });
        chunks.flat_map(move |chunk| {
            let retired =
                self.head(chunk).map_or(null_mut(), |head| head.retired.load(Ordering::Acquire));
            // SAFETY: null, or a chunk whose memory nobody frees.
            let sections = unsafe { retired.as_ref() }.map_or(&[][..], |chunk| chunk.sections());
            let id = move |at| SectionId::of_chunk(chunk, at);
            sections.iter().enumerate().map(move |(at, section)| (id(at), section))
        })
    }

    /// Forgets all chunks that are retired. Returns each with the frames of its sections' bitmaps,
    /// which it forgets as well. For the control path only.
    #[cfg(not(loom))]
    pub(crate) fn forget_retired(
        &self,
    ) -> impl Iterator<Item = (*mut Chunk, impl Iterator<Item = *mut BitmapFrame>)> {
        let leaves = (0..super::ROOT_LEAVES).filter_map(|leaf| self.leaf(leaf));
        let pages = leaves.flat_map(|leaf| &leaf.heads);
        // SAFETY: as in `Directory::leaf`.
        let pages = pages.filter_map(|at| unsafe { at.load(Ordering::Acquire).as_ref() });
        pages.flat_map(|page| &page.heads).filter_map(|head| {
            let retired = head.retired.load(Ordering::Relaxed);
            head.retired.store(null_mut(), Ordering::Relaxed);
            // SAFETY: null, or a chunk whose memory the caller has not given back yet.
            let chunk = unsafe { retired.as_ref() }?;
            let bitmaps = chunk.sections().iter().flat_map(|section| section.bitmaps.each());
            let bitmaps = bitmaps.map(|(_, at)| at.forget()).filter(|bitmaps| !bitmaps.is_null());
            Some((retired, bitmaps))
        })
    }
}

/// Returns whether no memory of a section is present, or about to be.
fn is_unused(section: &Section) -> bool {
    let there = section.present.load(Ordering::Acquire) | section.device();
    let held = section.isolated.load(Ordering::Acquire);
    there | held == 0
}
