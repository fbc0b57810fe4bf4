//! Accesses registers and memory, each value by one instruction.

use crate::kernel::fatal::give_up;
use core::ptr::NonNull;

/// Bytes that are mapped, and that a device may read and write.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    start: NonNull<u8>,
    len: u64,
}

/// An integer that is accessed by one instruction.
pub(crate) trait Word: Copy {}

impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {}

impl Window {
    /// Makes a window.
    ///
    /// # Safety
    /// The bytes must stay mapped for reads and writes, and no reference to them may exist.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: u64) -> Self {
        Window { start, len }
    }

    /// Reads the value at an offset. Ends the run if it is not within the window.
    pub(crate) fn read<T: Word>(&self, offset: u64) -> T {
        // SAFETY: `place` has checked that the value is aligned and mapped, and every value is valid.
        unsafe { self.place::<T>(offset).read_volatile() }
    }

    /// Writes the value at an offset. Ends the run if it is not within the window.
    pub(super) fn write<T: Word>(&self, offset: u64, value: T) {
        // SAFETY: `place` has checked that the value is aligned and mapped.
        unsafe { self.place::<T>(offset).write_volatile(value) }
    }

    /// Copies bytes to `data`: 2 or 4 bytes at an aligned offset by one instruction.
    pub(super) fn copy_to(&self, offset: u64, data: &mut [u8]) {
        match data {
            [a, b] if self.is_aligned::<u16>(offset) => {
                [*a, *b] = self.read::<u16>(offset).to_le_bytes();
            }
            [a, b, c, d] if self.is_aligned::<u32>(offset) => {
                [*a, *b, *c, *d] = self.read::<u32>(offset).to_le_bytes();
            }
            _ => (offset..).zip(data).for_each(|(offset, byte)| *byte = self.read(offset)),
        }
    }

    /// Copies bytes from `data`, as [`copy_to`](Self::copy_to) does.
    pub(super) fn copy_from(&self, offset: u64, data: &[u8]) {
        match *data {
            [a, b] if self.is_aligned::<u16>(offset) => {
                self.write(offset, u16::from_le_bytes([a, b]));
            }
            [a, b, c, d] if self.is_aligned::<u32>(offset) => {
                self.write(offset, u32::from_le_bytes([a, b, c, d]));
            }
            _ => (offset..).zip(data).for_each(|(offset, &byte)| self.write(offset, byte)),
        }
    }

    fn is_aligned<T: Word>(&self, offset: u64) -> bool {
        (self.start.addr().get() as u64 + offset).is_multiple_of(align_of::<T>() as u64)
    }

    fn place<T: Word>(&self, offset: u64) -> *mut T {
        let is_within =
            offset.checked_add(size_of::<T>() as u64).is_some_and(|end| end <= self.len);
        if !is_within || !self.is_aligned::<T>(offset) {
            give_up(format_args!("the device has no register at {offset:#x}"));
        }
        self.start.as_ptr().wrapping_add(hotmem_guest::to_usize(offset)).cast()
    }
}
