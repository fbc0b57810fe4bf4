//! Defines the size classes of the objects in slabs.

use core::alloc::Layout;

/// The size class of all objects of one size: an index of [`CLASSES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SizeClass(u8);

/// The bytes of an object and the frames of a slab, for each class. An object is aligned to the
/// largest power of two that divides its size. The sizes of large objects are not powers of two:
/// otherwise the same fields of all objects would compete for the same few cache sets.
const CLASSES: [(usize, usize); CLASS_COUNT] = [
    (16, 1),
    (32, 1),
    (48, 1),
    (64, 1),
    (80, 1),
    (96, 1),
    (128, 1),
    (160, 1),
    (192, 1),
    (256, 1),
    (320, 1),
    (384, 1),
    (528, 8),
    (640, 8),
    (768, 8),
    (1040, 16),
    (1280, 16),
    (1536, 16),
    (2064, 16),
    (3072, 16),
];

/// The number of classes.
pub(crate) const CLASS_COUNT: usize = 20;

/// The size of the largest objects, in bytes.
const MAX_OBJECT_BYTES: usize = CLASSES[CLASS_COUNT - 1].0;
/// The size of every class is a multiple of this many bytes.
const UNIT_BYTES: usize = 16;
const FRAME_BYTES: usize = 4096;

/// For each multiple of [`UNIT_BYTES`], the smallest class whose objects have at least so many bytes.
const SMALLEST_CLASS: [u8; MAX_OBJECT_BYTES / UNIT_BYTES + 1] = {
    let mut smallest = [0; MAX_OBJECT_BYTES / UNIT_BYTES + 1];
    let (mut units, mut class) = (0, 0_u8);
    while units < smallest.len() {
        if units * UNIT_BYTES > CLASSES[class as usize].0 {
            class += 1;
        }
        smallest[units] = class;
        units += 1;
    }
    smallest
};

impl SizeClass {
    /// Returns the smallest class whose objects fit a layout, or `None` if no class fits.
    #[inline]
    pub(crate) fn of(layout: Layout) -> Option<SizeClass> {
        let units = layout.size().div_ceil(UNIT_BYTES);
        let class = SizeClass(*SMALLEST_CLASS.get(units)?);
        if layout.align() <= UNIT_BYTES {
            Some(class)
        } else {
            class.with_alignment(layout.align())
        }
    }

    /// Returns the smallest class from this one on whose objects have this alignment.
    fn with_alignment(self, align: usize) -> Option<SizeClass> {
        (self.0..)
            .map(SizeClass)
            .take_while(|class| class.index() < CLASS_COUNT)
            .find(|class| class.size() % align == 0)
    }

    /// Iterates over all classes.
    #[allow(clippy::cast_possible_truncation, reason = "`CLASS_COUNT` fits")]
    pub(crate) fn all() -> impl Iterator<Item = SizeClass> {
        (0..CLASS_COUNT as u8).map(SizeClass)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the size of an object, in bytes.
    pub(crate) const fn size(self) -> usize {
        CLASSES[self.index()].0
    }

    /// Returns the number of frames of a slab.
    pub(crate) const fn frames(self) -> usize {
        CLASSES[self.index()].1
    }

    /// Returns the size of a slab, in bytes. A slab is aligned to its size.
    pub(crate) const fn slab_bytes(self) -> usize {
        self.frames() * FRAME_BYTES
    }

    /// Returns the offset of the first object in a slab with a header of `header` bytes.
    pub(crate) const fn first_offset(self, header: usize) -> usize {
        let align = 1 << self.size().trailing_zeros();
        if align < header { header } else { align }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_gets_the_smallest_class_that_fits() {
        for size in (0..=5000).step_by(if cfg!(miri) { 97 } else { 1 }) {
            for align in (0..14).map(|shift| 1 << shift) {
                let class = SizeClass::of(Layout::from_size_align(size, align).unwrap());
                let fits =
                    |class: &SizeClass| class.size() >= size && class.size().is_multiple_of(align);
                let expected = SizeClass::all().find(fits);
                if align <= UNIT_BYTES {
                    let by_size_only = SizeClass::all().find(|class| class.size() >= size);
                    assert_eq!((class, expected), (by_size_only, by_size_only));
                }
                assert_eq!(class, expected, "{size} bytes aligned to {align}");
            }
        }
    }

    #[test]
    fn objects_are_aligned_and_fill_seven_eighths_of_a_slab() {
        for class in SizeClass::all() {
            let align = 1 << class.size().trailing_zeros();
            let first = class.first_offset(64);
            assert_eq!(first % align, 0);
            assert!(first >= 64 && class.slab_bytes().is_power_of_two());
            let objects = (class.slab_bytes() - first) / class.size();
            assert!(objects * class.size() * 8 >= class.slab_bytes() * 7, "{class:?}");
        }
    }
}
