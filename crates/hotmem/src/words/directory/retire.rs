//! Retires the chunks of withdrawn memory: hides them from look-ups, and later puts them back or
//! frees them.
//!
//! A CPU that has looked up a chunk may use its words at any later time: it may try to claim
//! pageblocks, find none, and then clear bits of the trees above the chunk. So a retired chunk
//! keeps its contents, and memory that is added at the same place later gets the same chunk back.
//! The memory of a retired chunk can be used for something else only after all calls that may have
//! looked up the chunk have returned, which only the kernel can know.

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
    /// Hides the chunk of a section from look-ups, if the chunk exists and no section of it has
    /// memory. Memory that is added at the same place gets the chunk back. For the control path
    /// only.
    pub(crate) fn retire(&self, id: SectionId) {
        let Some(leaf) = self.leaf(id.chunk() / LEAF_CHUNKS) else { return };
        let (Some(chunk), Some(header)) = (self.chunk(id.chunk()), self.chunk_header(id.chunk()))
        else {
            return;
        };
        if chunk.sections().iter().all(|section| section.blocks_in_use() == 0) {
            let pointer = &leaf.chunks[id.chunk() % LEAF_CHUNKS];
            // Relaxed: only the control path reads this pointer, and it has published the chunk
            // itself.
            header.retired.store(pointer.load(Ordering::Relaxed), Ordering::Relaxed);
            pointer.store(null_mut(), Ordering::Relaxed);
        }
    }

    /// Puts the chunk of a section back, if it is retired. For the control path only.
    pub(super) fn put_back(&self, id: SectionId) {
        let Some(leaf) = self.leaf(id.chunk() / LEAF_CHUNKS) else { return };
        let Some(header) = self.chunk_header(id.chunk()) else { return };
        let retired = header.retired.load(Ordering::Relaxed);
        if !retired.is_null() {
            // Release: a reader that finds the pointer finds the piece initialised.
            leaf.chunks[id.chunk() % LEAF_CHUNKS].store(retired, Ordering::Release);
            header.retired.store(null_mut(), Ordering::Relaxed);
        }
    }

    /// Returns whether the chunk of a section is retired.
    #[cfg(not(loom))]
    pub(super) fn is_retired(&self, id: SectionId) -> bool {
        let retired = |header: &super::ChunkHeader| header.retired.load(Ordering::Relaxed);
        self.chunk_header(id.chunk()).is_some_and(|header| !retired(header).is_null())
    }

    /// Returns a section of a retired chunk.
    ///
    /// # Safety
    /// No call frees the memory of retired chunks while the result is in use.
    pub(crate) unsafe fn retired_section(&self, id: SectionId) -> Option<&Section> {
        let retired = self.chunk_header(id.chunk())?.retired.load(Ordering::Acquire);
        // SAFETY: null, or a retired chunk, whose memory is not freed meanwhile, by the contract of
        // this function.
        unsafe { retired.as_ref() }?.section(id.index_in_chunk())
    }

    /// Forgets all retired chunks, and the bitmaps of their sections. Yields each chunk with the
    /// frames of these bitmaps. For the control path only.
    #[cfg(not(loom))]
    pub(crate) fn forget_retired(
        &self,
    ) -> impl Iterator<Item = (*mut Chunk, impl Iterator<Item = *mut BitmapFrame>)> {
        let leaves = (0..super::ROOT_LEAVES).filter_map(|leaf| self.leaf(leaf));
        let headers = leaves.flat_map(|leaf| &leaf.headers);
        // SAFETY: null, or a piece that stays for as long as the instance exists.
        let headers =
            headers.filter_map(|pointer| unsafe { pointer.load(Ordering::Acquire).as_ref() });
        headers.flat_map(|group| &group.headers).filter_map(|header| {
            let retired = header.retired.load(Ordering::Relaxed);
            header.retired.store(null_mut(), Ordering::Relaxed);
            // SAFETY: null, or a retired chunk whose memory the caller has not freed yet.
            let chunk = unsafe { retired.as_ref() }?;
            let bitmaps = chunk.sections().iter().flat_map(|section| section.bitmaps.pointers());
            let bitmaps =
                bitmaps.map(|(_, pointer)| pointer.forget()).filter(|bitmaps| !bitmaps.is_null());
            Some((retired, bitmaps))
        })
    }
}
