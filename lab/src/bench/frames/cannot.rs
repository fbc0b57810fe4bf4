//! Says which cases an allocator cannot do.

use super::access::Access;
use super::adapters::{bitmap, buddy_slab, buddy_system, hotmem, llfree, many_frames};
use super::case::Case;
use super::subject::Subject;

impl Case {
    /// Returns why the subject cannot do the case, or `None` if it can.
    pub(super) fn cannot(&self) -> Option<&'static str> {
        if self.subject != Subject::Hotmem && self.state.is_without_movable() {
            return Some("it has no zones");
        }
        match (self.subject, self.access) {
            (Subject::Hotmem, _) => hotmem::cannot(self),
            (_, Access::Announce | Access::AnnounceAddOnline) => Some("its memory cannot grow"),
            (Subject::HotmemMagazine | Subject::HotmemCpuMagazine, _) => {
                many_frames::magazine_cannot(self)
            }
            (Subject::HotmemBatches, _) => many_frames::batches_cannot(self),
            (Subject::Llfree, _) => llfree::cannot(self),
            (Subject::BuddySlabAllocator, _) => buddy_slab::cannot(self),
            (Subject::BuddySystemAllocator, _) => buddy_system::cannot(self),
            (Subject::BitmapAllocator, _) => bitmap::cannot(self),
            (Subject::Limit, _) => many_frames::limit_cannot(self),
        }
    }
    /// Returns why valgrind cannot count the instructions of the case, or `None` if it can.
    pub(super) fn cannot_be_counted(&self) -> Option<&'static str> {
        match self.subject {
            Subject::BuddySlabAllocator => buddy_slab::cannot_be_counted(self),
            _ => None,
        }
    }
}
