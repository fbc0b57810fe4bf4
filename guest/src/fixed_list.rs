//! A list of limited length without a heap.

use core::ops::Deref;

/// A list of at most `N` values.
#[derive(Clone, Copy, Debug)]
pub struct FixedList<T, const N: usize> {
    values: [T; N],
    len: usize,
}

/// The list has no room for another value. Contains the maximal length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListFull(pub usize);

impl<T: Copy, const N: usize> FixedList<T, N> {
    /// Makes an empty list. The unused part of the array holds `filler`.
    #[must_use]
    pub const fn empty(filler: T) -> Self {
        FixedList { values: [filler; N], len: 0 }
    }

    /// Adds a value.
    ///
    /// # Errors
    /// [`ListFull`] if the list has `N` values.
    pub fn push(&mut self, value: T) -> Result<(), ListFull> {
        *self.values.get_mut(self.len).ok_or(ListFull(N))? = value;
        self.len += 1;
        Ok(())
    }
}

impl<T, const N: usize> Deref for FixedList<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_list_refuses_a_value_and_keeps_the_others() {
        let mut list = FixedList::<u8, 2>::empty(0);
        assert!(list.is_empty());
        assert_eq!((list.push(7), list.push(8), list.push(9)), (Ok(()), Ok(()), Err(ListFull(2))));
        assert_eq!(*list, [7, 8]);
    }
}
