//! Objects of one size in some frames, behind a header.

use crate::class::Class;
use core::ptr::{NonNull, null_mut};

/// The header of a slab, at its start. Code that does not hold the shard's lock reads only `shard`
/// and `class`, which never change.
#[repr(C, align(64))]
pub(crate) struct Slab {
    /// The next slab in the shard's list of slabs with free objects.
    pub(crate) next: *mut Slab,
    /// The previous slab in that list.
    pub(crate) before: *mut Slab,
    /// The head of the list of freed objects, which are linked through their first bytes.
    freed: *mut Object,
    /// The offset of the first object that was never allocated, or the end of the slab.
    fresh: usize,
    /// The number of allocated objects.
    used: u16,
    /// The number of its shard.
    pub(crate) shard: u16,
    /// The class of its objects.
    pub(crate) class: Class,
    /// Whether it is set aside: no object is allocated from it.
    pub(crate) aside: bool,
}

/// The least offset of the first object.
pub(crate) const HEADER: usize = size_of::<Slab>();

/// An object that is free.
pub(crate) struct Object {
    next: *mut Object,
}

impl Slab {
    /// Writes the header of a slab without objects.
    ///
    /// # Safety
    /// `memory` belongs to the caller, and has the size and alignment of a slab of this class.
    pub(crate) unsafe fn make(memory: NonNull<u8>, class: Class, shard: u16) -> NonNull<Slab> {
        let slab = memory.cast();
        let (next, before) = (null_mut(), null_mut());
        let (freed, fresh) = (null_mut(), class.first(HEADER));
        // SAFETY: by the caller's promise; the header is smaller than a frame.
        unsafe {
            slab.write(Slab { next, before, freed, fresh, used: 0, shard, class, aside: false });
        }
        slab
    }

    /// Allocates an object.
    ///
    /// # Safety
    /// `slab` was made by [`make`](Self::make), and the caller has exclusive access to it, except
    /// to allocated objects.
    #[inline]
    pub(crate) unsafe fn alloc(slab: NonNull<Slab>) -> Option<NonNull<u8>> {
        // SAFETY: by the caller's promise. Objects lie behind the header.
        let this = unsafe { &mut *slab.as_ptr() };
        let object = match NonNull::new(this.freed) {
            Some(object) => {
                // SAFETY: a freed object belongs to the slab, and `free` has written its first
                // bytes.
                this.freed = unsafe { object.read() }.next;
                object.cast()
            }
            None => {
                let at = this.fresh;
                if at + this.class.size() > this.class.slab_bytes() {
                    return None;
                }
                this.fresh += this.class.size();
                // SAFETY: within the slab.
                unsafe { slab.cast::<u8>().add(at) }
            }
        };
        this.used += 1;
        Some(object)
    }

    /// Frees an object.
    ///
    /// # Safety
    /// As for [`alloc`](Self::alloc), which has returned `object`.
    #[inline]
    pub(crate) unsafe fn free(slab: NonNull<Slab>, object: NonNull<u8>) {
        // SAFETY: by the caller's promise. Objects lie behind the header.
        let this = unsafe { &mut *slab.as_ptr() };
        let object = object.cast::<Object>();
        // SAFETY: the object is free now, and large and aligned enough.
        unsafe { object.write(Object { next: this.freed }) };
        this.freed = object.as_ptr();
        this.used -= 1;
    }

    /// Returns whether all objects are allocated.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.freed.is_null() && self.fresh + self.class.size() > self.class.slab_bytes()
    }

    /// Returns whether no object is allocated.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }
}
