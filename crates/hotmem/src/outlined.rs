//! Keeps the code of long iterators out of the functions that use them.
//!
//! The image of a small kernel should stay small. So a function that many others call is marked
//! `#[inline(never)]`, even if it is short, unless it is on a fast path: at `opt-level = "s"`, the
//! compiler would copy it into each caller. `cargo xtask text` prints the size.
//!
//! The opposite, `#[inline]`, is needed by the entrances that kernels call most, and by functions of
//! hot paths that are not generic and call others. Short functions without calls need none: the
//! compiler inlines them into other crates by itself. An attribute stays only where the instructions of
//! a bench or the size of the text show that it is needed.

/// An iterator whose `next` is one function, which all users of the iterator call. Adapters on top
/// of a plain iterator compile the whole iterator again for each user.
#[derive(Clone)]
pub(crate) struct Outlined<I>(pub(crate) I);

impl<I: Iterator> Iterator for Outlined<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }
}

impl<I: DoubleEndedIterator> DoubleEndedIterator for Outlined<I> {
    fn next_back(&mut self) -> Option<I::Item> {
        self.0.next_back()
    }
}
