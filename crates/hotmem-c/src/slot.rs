//! Keeps an object of this crate in the caller's memory.

use crate::error::{Error, HOTMEM_EALREADY, HOTMEM_EBUSY, HOTMEM_EFAULT, HOTMEM_EINVAL};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// An object in the caller's memory, which was zero before, stays where it is, and is never dropped.
#[repr(C)]
pub(crate) struct Slot<T> {
    /// 0, or a value that depends on the slot's address once `value` has been written. So other
    /// memory, or a copy of a slot, is refused in all likelihood.
    seal: AtomicU64,
    /// 1 while the object is taken or being written.
    taken: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

/// Exclusive access to the object, until it is dropped.
pub(crate) struct Taken<'a, T> {
    value: &'a mut T,
    _hold: Hold<'a>,
}

/// The right to change a slot.
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
    /// Returns the seal of this place: its address, negated. So it is no pointer, and costs no
    /// constant.
    #[inline]
    fn sealed(&self) -> u64 {
        ((&raw const *self).addr() as u64).wrapping_neg()
    }

    /// Returns the slot at `pointer`.
    ///
    /// # Safety
    /// The pointer is null, not aligned, or that to memory of a slot's size, which was zero and
    /// which only this module has accessed since, and which lives for good.
    #[inline]
    pub(crate) unsafe fn at(pointer: *const Slot<T>) -> Result<&'static Slot<T>, Error> {
        if pointer.is_null() {
            return Err(Error(HOTMEM_EFAULT));
        }
        if !pointer.is_aligned() {
            return Err(Error(HOTMEM_EINVAL));
        }
        // SAFETY: by the caller's promise: zeroes are an empty slot.
        Ok(unsafe { &*pointer })
    }

    /// Writes the object.
    pub(crate) fn write(&self, make: impl FnOnce() -> Result<T, Error>) -> Result<(), Error> {
        let _hold = self.hold_empty()?;
        let value = make()?;
        // SAFETY: there is no object yet, and nobody else writes one: we hold the slot.
        unsafe { (*self.value.get()).write(value) };
        // Release pairs with the Acquire in `is_written`.
        self.seal.store(self.sealed(), Ordering::Release);
        Ok(())
    }

    /// Writes the object and passes it to `start`. The slot has an object only if that succeeds.
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
        // SAFETY: there is no object yet, and nobody else writes one: we hold the slot.
        let started = start(unsafe { (*self.value.get()).write(value) })?;
        // Release pairs with the Acquire in `is_written`.
        self.seal.store(self.sealed(), Ordering::Release);
        Ok(started)
    }

    /// Takes the slot, if it has no object.
    fn hold_empty(&self) -> Result<Hold<'_>, Error> {
        let is_empty = || match self.seal.load(Ordering::Acquire) {
            0 => Ok(()),
            seal if seal == self.sealed() => Err(Error(HOTMEM_EALREADY)),
            _ => Err(Error(HOTMEM_EINVAL)),
        };
        // Memory that is no slot is not written to. Meanwhile another caller may write the object.
        is_empty()?;
        let hold = Hold::new(&self.taken)?;
        is_empty().map(|()| hold)
    }

    /// Returns whether there is an object.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.seal.load(Ordering::Acquire) == self.sealed()
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
        // SAFETY: it was written, and is not written any more.
        Ok(unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Takes the object. Returns HOTMEM_EBUSY if it is taken, by a caller without the lock or
    /// because a hook calls back.
    pub(crate) fn take(&self) -> Result<Taken<'_, T>, Error> {
        if !self.is_written() {
            return Err(Error(HOTMEM_EINVAL));
        }
        let hold = Hold::new(&self.taken)?;
        // SAFETY: it was written, and only the holder of `taken` has it.
        let value = unsafe { (*self.value.get()).assume_init_mut() };
        Ok(Taken { _hold: hold, value })
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}
