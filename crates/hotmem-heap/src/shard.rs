//! Keeps lists of the slabs that one CPU allocates from.

use crate::class::{CLASS_COUNT, SizeClass};
use crate::slab::Slab;
use core::ops::Range;
use core::ptr::{NonNull, null_mut};

/// Two lists of slabs with free objects for each class. Full slabs are in no list.
pub(crate) struct Shard {
    /// The first slab of each list of slabs to allocate from.
    first_slabs: [*mut Slab; CLASS_COUNT],
    /// The first slab of each list of slabs that are set aside: no object is allocated from them.
    first_set_aside: [*mut Slab; CLASS_COUNT],
}

// SAFETY: the slabs of a shard are accessed only by the methods of that shard, except for the fields
// `shard` and `class`, which never change.
unsafe impl Send for Shard {}

impl Shard {
    pub(crate) const fn new() -> Shard {
        Shard { first_slabs: [null_mut(); CLASS_COUNT], first_set_aside: [null_mut(); CLASS_COUNT] }
    }

    /// Allocates an object, or returns `None` if no slab to allocate from has a free object.
    #[inline]
    pub(crate) fn alloc(&mut self, class: SizeClass) -> Option<NonNull<u8>> {
        let slab = NonNull::new(self.first_slabs[class.index()])?;
        // SAFETY: slabs in the list belong to this shard and have free objects.
        unsafe {
            let object = Slab::alloc(slab)?;
            if slab.as_ref().is_full() {
                self.unlink(slab);
            }
            Some(object)
        }
    }

    /// Adds a new slab.
    ///
    /// # Safety
    /// The slab was made by [`Slab::make`] for this shard, has no objects, and is not used
    /// elsewhere.
    pub(crate) unsafe fn add(&mut self, slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise.
        unsafe { self.link(slab) };
    }

    /// Frees an object. If its slab is then empty, and is either set aside or not the only slab in
    /// its list, removes the slab from this shard and returns the slab.
    ///
    /// # Safety
    /// The slab belongs to this shard, and the object was allocated from it.
    #[inline]
    pub(crate) unsafe fn free(
        &mut self,
        slab: NonNull<Slab>,
        object: NonNull<u8>,
    ) -> Option<NonNull<Slab>> {
        // SAFETY: by the caller's promise.
        unsafe {
            let was_full = slab.as_ref().is_full();
            Slab::free(slab, object);
            if was_full {
                self.link(slab);
            }
            let Slab { next, previous, is_set_aside, .. } = *slab.as_ref();
            let is_only_slab = next.is_null() && previous.is_null();
            if slab.as_ref().is_empty() && (is_set_aside || !is_only_slab) {
                self.unlink(slab);
                return Some(slab);
            }
            None
        }
    }

    /// Removes an empty slab from this shard and returns it, or returns `None` if no slab is empty.
    pub(crate) fn take_empty(&mut self, class: SizeClass) -> Option<NonNull<Slab>> {
        let mut next = NonNull::new(self.first_slabs[class.index()]);
        while let Some(slab) = next {
            // SAFETY: slabs in the list belong to this shard.
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

    /// Sets aside the slabs that begin within `addresses` and are neither full nor empty.
    pub(crate) fn set_aside(&mut self, class: SizeClass, addresses: &Range<*mut u8>) {
        let mut next = NonNull::new(self.first_slabs[class.index()]);
        while let Some(slab) = next {
            // SAFETY: slabs in the list belong to this shard.
            unsafe {
                next = NonNull::new(slab.as_ref().next);
                if addresses.contains(&slab.as_ptr().cast()) && !slab.as_ref().is_empty() {
                    self.move_slab(slab, true);
                }
            }
        }
    }

    /// Makes a slab that is set aside available for allocations again. Returns false if no slab is
    /// set aside.
    pub(crate) fn reuse_set_aside(&mut self, class: SizeClass) -> bool {
        let slab = NonNull::new(self.first_set_aside[class.index()]);
        // SAFETY: slabs in the list belong to this shard.
        slab.map(|slab| unsafe { self.move_slab(slab, false) }).is_some()
    }

    /// Moves a slab to the list of slabs that are set aside, or to the list to allocate from.
    ///
    /// # Safety
    /// The slab is in one of this shard's lists.
    unsafe fn move_slab(&mut self, mut slab: NonNull<Slab>, is_set_aside: bool) {
        // SAFETY: by the caller's promise.
        unsafe {
            self.unlink(slab);
            slab.as_mut().is_set_aside = is_set_aside;
            self.link(slab);
        }
    }

    /// Returns the first slab of the list of slabs that are set aside, or of the list to allocate from.
    fn list(&mut self, class: SizeClass, is_set_aside: bool) -> &mut *mut Slab {
        let lists = if is_set_aside { &mut self.first_set_aside } else { &mut self.first_slabs };
        &mut lists[class.index()]
    }

    /// Puts a slab at the start of its list.
    ///
    /// # Safety
    /// The slab belongs to this shard, and is in no list.
    unsafe fn link(&mut self, mut slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise. The other slabs in the list belong to this shard, too.
        unsafe {
            let Slab { class, is_set_aside, .. } = *slab.as_ref();
            let first = self.list(class, is_set_aside);
            let next = core::mem::replace(first, slab.as_ptr());
            (slab.as_mut().next, slab.as_mut().previous) = (next, null_mut());
            if let Some(mut next) = NonNull::new(next) {
                next.as_mut().previous = slab.as_ptr();
            }
        }
    }

    /// Removes a slab from its list.
    ///
    /// # Safety
    /// The slab is in one of this shard's lists.
    unsafe fn unlink(&mut self, mut slab: NonNull<Slab>) {
        // SAFETY: by the caller's promise. The other slabs in the list belong to this shard, too.
        unsafe {
            let Slab { next, previous, class, is_set_aside, .. } = *slab.as_ref();
            if let Some(mut next) = NonNull::new(next) {
                next.as_mut().previous = previous;
            }
            match NonNull::new(previous) {
                Some(mut previous) => previous.as_mut().next = next,
                None => *self.list(class, is_set_aside) = next,
            }
            (slab.as_mut().next, slab.as_mut().previous) = (null_mut(), null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::alloc::{Layout, alloc, dealloc};
    use std::vec::Vec;

    /// Allocates a slab, which `drop_slab` frees.
    fn new_slab(class: SizeClass) -> NonNull<Slab> {
        // SAFETY: the layout of a slab has a size above 0. The memory of the slab was just allocated
        // with that layout, so it has the size and alignment of a slab.
        unsafe { Slab::make(NonNull::new(alloc(layout(class))).unwrap(), class, 0) }
    }

    fn drop_slab(slab: NonNull<Slab>) {
        // SAFETY: the slab was allocated by `new_slab`, and is in no shard.
        unsafe {
            let layout = layout(slab.as_ref().class);
            dealloc(slab.as_ptr().cast(), layout);
        }
    }

    fn layout(class: SizeClass) -> Layout {
        Layout::from_size_align(class.slab_bytes(), class.slab_bytes()).unwrap()
    }

    fn slab_of(object: NonNull<u8>, class: SizeClass) -> NonNull<Slab> {
        let slab = object.as_ptr().map_addr(|address| address & !(class.slab_bytes() - 1));
        NonNull::new(slab).unwrap().cast()
    }

    /// A shard, with objects of one class, and the number of its slabs.
    struct TestShard {
        shard: Shard,
        class: SizeClass,
        slabs: usize,
    }

    impl TestShard {
        /// Returns the offsets of the bytes of an object that the test writes and reads: normally
        /// all of them. Under Miri, which would take minutes, only the first and the last.
        fn checked_offsets(&self) -> impl Iterator<Item = usize> + use<> {
            let last = self.class.size() - 1;
            (0..=last).step_by(if cfg!(miri) { last } else { 1 })
        }

        /// Allocates an object and fills it with a number.
        fn alloc(&mut self, number: u8) -> (NonNull<u8>, u8) {
            let object = self.shard.alloc(self.class).unwrap_or_else(|| {
                self.slabs += 1;
                // SAFETY: the slab was just made for this shard.
                unsafe { self.shard.add(new_slab(self.class)) };
                self.shard.alloc(self.class).unwrap()
            });
            for offset in self.checked_offsets() {
                // SAFETY: the offset lies within the object.
                unsafe { object.add(offset).write(number) };
            }
            (object, number)
        }

        /// Frees an object, and checks that its bytes are unchanged.
        fn free(&mut self, (object, number): (NonNull<u8>, u8)) {
            for offset in self.checked_offsets() {
                // SAFETY: the offset lies within the object, and `alloc` has written this byte.
                assert_eq!(unsafe { object.add(offset).read() }, number, "{:?}", self.class);
            }
            // SAFETY: the object was allocated from this shard.
            if let Some(empty) = unsafe { self.shard.free(slab_of(object, self.class), object) } {
                self.slabs -= 1;
                drop_slab(empty);
            }
        }
    }

    #[test]
    fn objects_do_not_overlap_and_all_empty_slabs_but_one_are_removed() {
        for class in SizeClass::all().step_by(if cfg!(miri) { 8 } else { 1 }) {
            let mut test_shard = TestShard { shard: Shard::new(), class, slabs: 0 };
            let count = class.slab_bytes() / class.size() * 2 + 1;
            let numbers = (0..251).cycle().take(count);
            let mut objects: Vec<_> = numbers.map(|number| test_shard.alloc(number)).collect();
            assert!(test_shard.slabs > 2, "{class:?}");
            // Every second object is freed, and then allocated again.
            for index in (0..count).step_by(2) {
                test_shard.free(objects[index]);
            }
            for index in (0..count).step_by(2) {
                objects[index] = test_shard.alloc(objects[index].1);
            }
            objects.into_iter().for_each(|object| test_shard.free(object));
            assert_eq!(test_shard.slabs, 1, "{class:?}");
            drop_slab(test_shard.shard.take_empty(class).unwrap());
            assert_eq!(test_shard.shard.take_empty(class), None);
        }
    }
}
