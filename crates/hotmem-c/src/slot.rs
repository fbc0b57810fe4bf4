//! Keeps an object of this crate in the caller's memory.

use crate::error::{Error, HOTMEM_EALREADY, HOTMEM_EBUSY, HOTMEM_EFAULT, HOTMEM_EINVAL};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An object of type `T` in the caller's memory. The caller filled the memory with zeroes at first.
/// The object is never moved or dropped.
#[repr(C)]
pub(crate) struct Slot<T> {
    /// 0 until `value` is written. After that, the sum of the seal and the slot's address is the
    /// mark. The seal depends on the slot's address, so that a copy of a slot is refused. Other
    /// memory very probably has no valid seal and is refused too.
    seal: AtomicU64,
    /// 1 while a caller has exclusive access to the object or writes it, otherwise 0.
    taken: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// The two marks of an object. The code that writes a slot chooses one, so that a reader that checks
/// the seal learns one fact about the object as well. They are numbers and not an `enum`, because the
/// compiler would make a value of the `enum` before it branches.
pub(crate) const FIRST_MARK: u64 = 0;
pub(crate) const SECOND_MARK: u64 = 1;

/// Exclusive access to the object of a slot, until this value is dropped.
pub(crate) struct ExclusiveRef<'a, T> {
    value: &'a mut T,
    _hold: Hold<'a>,
}

/// The right to change a slot, until this value is dropped.
struct Hold<'a>(&'a AtomicU32);

impl<'a> Hold<'a> {
    fn new(taken: &'a AtomicU32) -> Result<Hold<'a>, Error> {
        // Acquire pairs with Release in `drop` of the previous hold.
        if taken.swap(1, Ordering::Acquire) == 0 {
            Ok(Hold(taken))
        } else {
            Err(Error(HOTMEM_EBUSY))
        }
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl<T> Slot<T> {
    /// Writes the seal of a slot that has an object.
    fn seal(&self, mark: u64) {
        let seal = mark.wrapping_sub((&raw const *self).addr() as u64);
        // Release pairs with the Acquire in `is_written` and `mark`.
        self.seal.store(seal, Ordering::Release);
    }

    /// Returns the sum of a seal and the slot's address. If the seal is valid, this is a mark.
    #[inline(always)]
    fn mark_in(&self, seal: u64) -> u64 {
        seal.wrapping_add((&raw const *self).addr() as u64)
    }

    #[inline(always)]
    fn is_valid(&self, seal: u64) -> bool {
        self.mark_in(seal) <= SECOND_MARK
    }

    /// Returns the slot at `pointer`.
    ///
    /// # Safety
    /// The pointer is null, not aligned, or points to memory of a slot's size. This memory was filled
    /// with zeroes at first, only this module has accessed it after that, and it is never freed.
    #[inline]
    pub(crate) unsafe fn at(pointer: *const Slot<T>) -> Result<&'static Slot<T>, Error> {
        if pointer.is_null() {
            return Err(Error(HOTMEM_EFAULT));
        }
        if !pointer.is_aligned() {
            return Err(Error(HOTMEM_EINVAL));
        }
        // SAFETY: the caller has promised that `pointer` points to zeroes, which are an empty slot,
        // or to a slot that this module has written.
        Ok(unsafe { &*pointer })
    }

    /// Writes an object to an empty slot by `make`, which returns its argument, and passes the object to
    /// `start`. If `start` fails, the object is dropped, and the slot stays empty. `make` gets the place of
    /// the object, because a kernel's stack may be smaller than the object.
    pub(crate) fn write(
        &self,
        make: impl for<'a> FnOnce(&'a mut MaybeUninit<T>) -> &'a mut T,
        start: impl FnOnce(&mut T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _hold = self.hold_empty()?;
        let value = self.value.get();
        // SAFETY: `_hold` gives this call the only access to `value`, and the slot is empty.
        let place = unsafe { &mut *value };
        start(make(place)).inspect_err(|_| {
            // SAFETY: `make` has written the object, and nothing uses it any more: the slot stays empty.
            unsafe { (*value).assume_init_drop() }
        })?;
        self.seal(FIRST_MARK);
        Ok(())
    }

    /// Copies `original` to an empty slot, passes the copy to `start`, and marks it. If `start`
    /// fails, the slot stays empty. The object is copied from memory to memory, because a kernel's
    /// stack may be smaller than the object.
    ///
    /// # Safety
    /// Nothing else uses `original`, except as the original of other copies. If `start` fails,
    /// nothing refers to the copy any more.
    pub(crate) unsafe fn start<R>(
        &'static self,
        original: &'static T,
        mark: u64,
        start: impl FnOnce(&'static T) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let _hold = self.hold_empty()?;
        let value = self.value.get().cast::<T>();
        // SAFETY: `_hold` gives this call the only access to `value`, and the slot is empty. The
        // original never changes and is never dropped, so a copy of its bytes is an object like it.
        unsafe { value.copy_from_nonoverlapping(original, 1) };
        // SAFETY: the object was just written, and from now on is only shared.
        let started = start(unsafe { &*value })?;
        self.seal(mark);
        Ok(started)
    }

    /// Takes exclusive access to the slot, if it is empty.
    fn hold_empty(&self) -> Result<Hold<'_>, Error> {
        let check_empty = || match self.seal.load(Ordering::Acquire) {
            0 => Ok(()),
            seal if self.is_valid(seal) => Err(Error(HOTMEM_EALREADY)),
            _ => Err(Error(HOTMEM_EINVAL)),
        };
        // Check before the change of `taken`, so that memory that is not a slot is not written.
        // Check again after the change, because another caller may have written the object between
        // the first check and the change.
        check_empty()?;
        let hold = Hold::new(&self.taken)?;
        check_empty().map(|()| hold)
    }

    /// Returns whether the slot has an object.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.is_valid(self.seal.load(Ordering::Acquire))
    }

    /// Returns the mark of the object, or another number than the two marks if the slot has no
    /// object.
    #[inline(always)]
    pub(crate) fn mark(&self) -> u64 {
        self.mark_in(self.seal.load(Ordering::Acquire))
    }

    /// Returns a shared reference to the object.
    ///
    /// # Safety
    /// [`is_written`](Self::is_written) has returned true, or [`mark`](Self::mark) has returned a
    /// mark. No code ever calls [`take`](Self::take) for this slot.
    #[inline]
    pub(crate) unsafe fn get_written(&self) -> &T {
        // SAFETY: the object was written. No code calls `take`, so no code changes the object.
        unsafe { (*self.value.get()).assume_init_ref() }
    }

    /// Takes exclusive access to the object.
    ///
    /// # Errors
    /// HOTMEM_EINVAL: the slot has no object. HOTMEM_EBUSY: another call has access to the object,
    /// because a caller does not hold the lock, or because a hook has made this call.
    pub(crate) fn take(&self) -> Result<ExclusiveRef<'_, T>, Error> {
        if !self.is_written() {
            return Err(Error(HOTMEM_EINVAL));
        }
        let hold = Hold::new(&self.taken)?;
        // SAFETY: the object was written, and only the call that has set `taken` accesses it.
        let value = unsafe { (*self.value.get()).assume_init_mut() };
        Ok(ExclusiveRef { _hold: hold, value })
    }
}

impl<T> Deref for ExclusiveRef<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for ExclusiveRef<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}
