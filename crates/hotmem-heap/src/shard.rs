//! The slabs that one CPU allocates from.

use crate::class::{COUNT, Class};
use crate::slab::Slab;
use core::ptr::{NonNull, null_mut};

/// For each class the slabs that have something free, in a list. Slabs that are full are in none.
pub(crate) struct Shard {
    first: [*mut Slab; COUNT],
}

// SAFETY: its slabs are reached through it alone.
unsafe impl Send for Shard {}

impl Shard {
    pub(crate) const fn new() -> Shard {
        Shard { first: [null_mut(); COUNT] }
    }

    /// Allocates an object, if a slab has one.
    #[inline]
    pub(crate) fn alloc(&mut self, class: Class) -> Option<NonNull<u8>> {
        let slab = NonNull::new(self.first[class.index()])?;
        // SAFETY: slabs in the list are this shard's, and have something free.
        unsafe {
            let object = Slab::alloc(slab)?;
            if slab.as_ref().is_full() {
                self.unlink(slab);
            }
            Some(object)
        }
    }

    /// Takes a slab over.
    ///
    /// # Safety
    /// It was made by [`Slab::make`] for this shard, has no objects, and nobody else uses it.
    pub(crate) unsafe fn adopt(&mut self, slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise.
        unsafe { self.link(slab) };
    }

    /// Frees an object. Returns its slab, which is no longer this shard's, if that was the last
    /// object and other slabs have something free.
    ///
    /// # Safety
    /// The slab is this shard's, and the object allocated from it.
    #[inline]
    pub(crate) unsafe fn free(
        &mut self,
        mut slab: NonNull<Slab>,
        object: NonNull<u8>,
    ) -> Option<NonNull<Slab>> {
        // SAFETY: by the caller's promise.
        unsafe {
            let was_full = slab.as_ref().is_full();
            Slab::free(slab, object);
            if was_full {
                self.link(slab);
            }
            let slab = slab.as_mut();
            let is_alone = slab.next.is_null() && slab.before.is_null();
            if slab.is_empty() && !is_alone {
                self.unlink(slab.into());
                return Some(slab.into());
            }
            None
        }
    }

    /// Takes out a slab without objects, if there is one.
    pub(crate) fn take_empty(&mut self, class: Class) -> Option<NonNull<Slab>> {
        let mut next = NonNull::new(self.first[class.index()]);
        while let Some(slab) = next {
            // SAFETY: slabs in the list are this shard's.
            unsafe {
                if slab.as_ref().is_empty() {
                    self.unlink(slab);
                    return Some(slab);
                }
                next = NonNull::new(slab.as_ref().next);
            }
        }
        None
    }

    /// Puts a slab at the start of its list.
    ///
    /// # Safety
    /// It is this shard's and in no list.
    unsafe fn link(&mut self, mut slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise; those in the list are this shard's, too.
        unsafe {
            let first = &mut self.first[slab.as_ref().class.index()];
            let next = core::mem::replace(first, slab.as_ptr());
            (slab.as_mut().next, slab.as_mut().before) = (next, null_mut());
            if let Some(mut next) = NonNull::new(next) {
                next.as_mut().before = slab.as_ptr();
            }
        }
    }

    /// Takes a slab out of its list.
    ///
    /// # Safety
    /// It is in this shard's list.
    unsafe fn unlink(&mut self, mut slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise; those in the list are this shard's, too.
        unsafe {
            let Slab { next, before, class, .. } = *slab.as_ref();
            if let Some(mut next) = NonNull::new(next) {
                next.as_mut().before = before;
            }
            match NonNull::new(before) {
                Some(mut before) => before.as_mut().next = next,
                None => self.first[class.index()] = next,
            }
            (slab.as_mut().next, slab.as_mut().before) = (null_mut(), null_mut());
        }
    }
}
