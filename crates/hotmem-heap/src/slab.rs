//! Allocates and frees the objects of a slab. A slab is a few frames: a header, then objects of one
//! size.

use crate::class::SizeClass;
use core::ptr::{NonNull, null_mut};

/// The header at the start of a slab. Code that does not hold the lock of the slab's shard reads only
/// `shard` and `class`, which never change.
#[repr(C, align(64))]
pub(crate) struct Slab {
    /// The next slab in the shard's list that this slab is in.
    pub(crate) next: *mut Slab,
    /// The previous slab in that list.
    pub(crate) previous: *mut Slab,
    /// The head of the list of freed objects, which are linked through their first bytes.
    freed_objects: *mut FreedObject,
    /// The offset of the first object that was never allocated, or the end of the slab.
    unused_offset: usize,
    /// The number of allocated objects.
    used_objects: u16,
    /// The number of the shard that the slab belongs to.
    pub(crate) shard: u16,
    /// The class of the slab's objects.
    pub(crate) class: SizeClass,
    /// Whether the slab is set aside, so that no object is allocated from it.
    pub(crate) is_set_aside: bool,
}

/// The size of the header in bytes: the smallest possible offset of the first object.
pub(crate) const HEADER_BYTES: usize = size_of::<Slab>();

/// The first bytes of an object that was freed: the link to the next freed object of the slab.
pub(crate) struct FreedObject {
    next: *mut FreedObject,
}

impl Slab {
    /// Writes the header of a slab without objects.
    ///
    /// # Safety
    /// The caller owns `memory`, which has the size and alignment of a slab of this class.
    pub(crate) unsafe fn make(memory: NonNull<u8>, class: SizeClass, shard: u16) -> NonNull<Slab> {
        let slab = memory.cast();
        // SAFETY: by the caller's promise. The header fits, because it is smaller than a frame.
        unsafe {
            slab.write(Slab {
                next: null_mut(),
                previous: null_mut(),
                freed_objects: null_mut(),
                unused_offset: class.first_offset(HEADER_BYTES),
                used_objects: 0,
                shard,
                class,
                is_set_aside: false,
            });
        }
        slab
    }

    /// Allocates an object, or returns `None` if the slab is full.
    ///
    /// # Safety
    /// `slab` was made by [`make`](Self::make). The caller has exclusive access to all of the slab
    /// except its allocated objects.
    #[inline]
    pub(crate) unsafe fn alloc(slab: NonNull<Slab>) -> Option<NonNull<u8>> {
        // SAFETY: by the caller's promise. The header does not overlap with objects.
        let header = unsafe { &mut *slab.as_ptr() };
        let object = match NonNull::new(header.freed_objects) {
            Some(object) => {
                // SAFETY: a freed object belongs to the slab, and `free` has written its first
                // bytes.
                header.freed_objects = unsafe { object.read() }.next;
                object.cast()
            }
            None => {
                let offset = header.unused_offset;
                if offset + header.class.size() > header.class.slab_bytes() {
                    return None;
                }
                header.unused_offset += header.class.size();
                // SAFETY: the object at `offset` ends within the slab.
                unsafe { slab.cast::<u8>().add(offset) }
            }
        };
        header.used_objects += 1;
        Some(object)
    }

    /// Frees an object.
    ///
    /// # Safety
    /// As for [`alloc`](Self::alloc), which has returned `object`.
    #[inline]
    pub(crate) unsafe fn free(slab: NonNull<Slab>, object: NonNull<u8>) {
        // SAFETY: by the caller's promise. The header does not overlap with objects.
        let header = unsafe { &mut *slab.as_ptr() };
        let object = object.cast::<FreedObject>();
        // SAFETY: the object has no user any more, and every object has the size and alignment of a
        // `FreedObject`.
        unsafe { object.write(FreedObject { next: header.freed_objects }) };
        header.freed_objects = object.as_ptr();
        header.used_objects -= 1;
    }

    /// Returns whether all objects are allocated.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.freed_objects.is_null()
            && self.unused_offset + self.class.size() > self.class.slab_bytes()
    }

    /// Returns whether no object is allocated.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.used_objects == 0
    }
}
