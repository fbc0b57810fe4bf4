//! Chunks of memory that has gone: taken out of look-ups, and then put back or given back.
//!
//! Whoever has looked a chunk up may go on with its words for any time: claim of them, find
//! nothing, and clear the bits above because of that. So a chunk that is retired stays as it is,
//! and memory that comes to its place again gets it back, not another. Only the kernel can know
//! when all calls that may have looked it up have returned; then its memory can be used for
//! something else.

use super::Directory;
use super::id::SectionId;
#[cfg(not(loom))]
use super::pieces::Chunk;
use super::sizes::LEAF_CHUNKS;
use crate::sync::Ordering;
use crate::words::Section;
use core::ptr::null_mut;

impl Directory {
    /// The control path only: no look-up finds the chunk of a section from now on, if it has one
    /// and nothing is in it. What is announced of its memory gets it back when it is added.
    pub(crate) fn retire(&self, id: SectionId) {
        let Some(leaf) = self.leaf(id.chunk() / LEAF_CHUNKS) else { return };
        let (Some(chunk), Some(head)) = (self.chunk(id.chunk()), self.head(id.chunk())) else {
            return;
        };
        if chunk.sections().iter().all(is_unused) {
            let at = &leaf.chunks[id.chunk() % LEAF_CHUNKS];
            // Relaxed: only the control path uses it, and it is the same memory.
            head.retired.store(at.load(Ordering::Relaxed), Ordering::Relaxed);
            at.store(null_mut(), Ordering::Relaxed);
        }
    }

    /// The control path only: puts a chunk back that was retired.
    pub(super) fn put_back(&self, id: SectionId) {
        let Some(leaf) = self.leaf(id.chunk() / LEAF_CHUNKS) else { return };
        let Some(head) = self.head(id.chunk()) else { return };
        let retired = head.retired.load(Ordering::Relaxed);
        if !retired.is_null() {
            // Release: whoever finds the pointer finds the piece made.
            leaf.chunks[id.chunk() % LEAF_CHUNKS].store(retired, Ordering::Release);
            head.retired.store(null_mut(), Ordering::Relaxed);
        }
    }

    /// Whether the chunk of a section is retired.
    #[cfg(not(loom))]
    pub(super) fn is_retired(&self, id: SectionId) -> bool {
        let retired = |head: &super::Head| head.retired.load(Ordering::Relaxed);
        self.head(id.chunk()).is_some_and(|head| !retired(head).is_null())
    }

    /// The control path only: forgets all chunks that are retired, and names them.
    #[cfg(not(loom))]
    pub(crate) fn forget_retired(&self) -> impl Iterator<Item = *mut Chunk> {
        let leaves = (0..super::ROOT_LEAVES).filter_map(|leaf| self.leaf(leaf));
        let pages = leaves.flat_map(|leaf| &leaf.heads);
        // SAFETY: as in `Directory::leaf`.
        let pages = pages.filter_map(|at| unsafe { at.load(Ordering::Acquire).as_ref() });
        pages.flat_map(|page| &page.heads).filter_map(|head| {
            let retired = head.retired.load(Ordering::Relaxed);
            head.retired.store(null_mut(), Ordering::Relaxed);
            (!retired.is_null()).then_some(retired)
        })
    }
}

/// Whether nothing of a section is there, or on its way.
fn is_unused(section: &Section) -> bool {
    let there = section.present.load(Ordering::Acquire) | section.device();
    let held = section.isolated.load(Ordering::Acquire);
    there | held == 0 && section.bitmaps.load(Ordering::Acquire).is_null()
}
