//! Keeps an object of this crate in the caller's memory.

use crate::error::{Error, HOTMEM_EALREADY, HOTMEM_EBUSY, HOTMEM_EFAULT, HOTMEM_EINVAL};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An object of type `T` in the caller's memory. The memory was zero at first. The object is never
/// moved or dropped.
#[repr(C)]
pub(crate) struct Slot<T> {
    /// 0 until `value` is written, and [`Slot::expected_seal`] afterwards. The seal depends on the
    /// slot's address, so a copy of a slot is refused, and other memory very probably too.
    seal: AtomicU64,
    /// 1 while a caller has exclusive access to the object or writes it, otherwise 0.
    taken: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Exclusive access to the object of a slot, until this value is dropped.
pub(crate) struct ExclusiveRef<'a, T> {
    value: &'a mut T,
    _hold: Hold<'a>,
}

/// The right to change a slot, until this value is dropped.
struct Hold<'a>(&'a AtomicU32);

impl<'a> Hold<'a> {
    fn new(taken: &'a AtomicU32) -> Result<Hold<'a>, Error> {
        // Acquire pairs with the Release in the drop of the last holder.
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
    /// Returns the seal of a written slot at this address: the negated address, which needs no
    /// constant and does not look like a pointer.
    #[inline]
    fn expected_seal(&self) -> u64 {
        ((&raw const *self).addr() as u64).wrapping_neg()
    }

    /// Returns the slot at `pointer`.
    ///
    /// # Safety
    /// The pointer is null, not aligned, or points to memory of a slot's size. That memory was zero
    /// at first, only this module has accessed it since, and it is never freed.
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

    /// Makes an object with `make` and writes it to an empty slot.
    pub(crate) fn write(&self, make: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
        let _hold = self.hold_empty()?;
        let value = make()?;
        // SAFETY: `_hold` gives this call the only access to `value`, and the slot is empty.
        unsafe { (*self.value.get()).write(value) };
        // Release pairs with the Acquire in `is_written`.
        self.seal.store(self.expected_seal(), Ordering::Release);
        Ok(())
    }

    /// Writes an object to an empty slot and passes it to `start`. If `start` fails, the slot stays
    /// empty.
    ///
    /// # Safety
    /// If `start` fails, nothing refers to the object any more.
    #[inline(always)]
    pub(crate) unsafe fn start<R>(
        &'static self,
        value: T,
        start: impl FnOnce(&'static T) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let _hold = self.hold_empty()?;
        // SAFETY: `_hold` gives this call the only access to `value`, and the slot is empty.
        let started = start(unsafe { (*self.value.get()).write(value) })?;
        // Release pairs with the Acquire in `is_written`.
        self.seal.store(self.expected_seal(), Ordering::Release);
        Ok(started)
    }

    /// Takes exclusive access to the slot, if it is empty.
    fn hold_empty(&self) -> Result<Hold<'_>, Error> {
        let is_empty = || match self.seal.load(Ordering::Acquire) {
            0 => Ok(()),
            seal if seal == self.expected_seal() => Err(Error(HOTMEM_EALREADY)),
            _ => Err(Error(HOTMEM_EINVAL)),
        };
        // Check before `taken` is changed, so that memory that is no slot is not written to. Check
        // again afterwards, because another caller may have written the object in between.
        is_empty()?;
        let hold = Hold::new(&self.taken)?;
        is_empty().map(|()| hold)
    }

    /// Returns whether the slot has an object.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.seal.load(Ordering::Acquire) == self.expected_seal()
    }

    /// Returns a shared reference to the object.
    ///
    /// # Safety
    /// Nobody ever [takes](Self::take) the object.
    #[inline]
    pub(crate) unsafe fn get(&self) -> Result<&T, Error> {
        if !self.is_written() {
            return Err(Error(HOTMEM_EINVAL));
        }
        // SAFETY: the object was written, and nobody changes it, because nobody takes it.
        Ok(unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Takes exclusive access to the object.
    ///
    /// # Errors
    /// HOTMEM_EINVAL: the slot has no object. HOTMEM_EBUSY: another call has access to it, because
    /// its caller does not hold the lock, or because this call comes from a hook.
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
