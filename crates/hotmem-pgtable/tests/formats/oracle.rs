//! A naive map: a list of extents without tables.

use crate::manual::Translation;

/// Consecutive pages with equal attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) virt: u64,
    pub(crate) bytes: u64,
    pub(crate) phys: u64,
    pub(crate) attributes: PageAttributes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageAttributes {
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) user: bool,
    pub(crate) global: bool,
    pub(crate) is_memory: bool,
    pub(crate) accessed: bool,
    pub(crate) dirty: bool,
}

/// Extents in the order of addresses.
#[derive(Clone, Default, Debug)]
pub(crate) struct Oracle(pub(crate) Vec<Extent>);

impl Extent {
    fn last(&self) -> u64 {
        self.virt + (self.bytes - 1)
    }

    fn part(self, offset: u64, bytes: u64) -> Extent {
        Extent { virt: self.virt + offset, phys: self.phys + offset, bytes, ..self }
    }
}

impl Oracle {
    pub(crate) fn at(&self, address: u64) -> Option<Extent> {
        self.0.iter().copied().find(|extent| extent.virt <= address && address <= extent.last())
    }

    pub(crate) fn overlaps(&self, virt: u64, bytes: u64) -> bool {
        let last = virt + (bytes - 1);
        self.0.iter().any(|extent| extent.virt <= last && virt <= extent.last())
    }

    pub(crate) fn insert(&mut self, extent: Extent) {
        let index = self.0.partition_point(|existing| existing.virt < extent.virt);
        self.0.insert(index, extent);
    }

    /// Cuts the extents at both ends of a range. Returns the indices of those in the range.
    fn cut(&mut self, virt: u64, last: u64) -> std::ops::Range<usize> {
        for end in [Some(virt), last.checked_add(1)].into_iter().flatten() {
            let is_cut = |extent: &Extent| extent.virt < end && end <= extent.last();
            if let Some(index) = self.0.iter().position(is_cut) {
                let extent = self.0[index];
                let below = end - extent.virt;
                self.0[index] = extent.part(0, below);
                self.0.insert(index + 1, extent.part(below, extent.bytes - below));
            }
        }
        let first = self.0.partition_point(|extent| extent.virt < virt);
        first..self.0.partition_point(|extent| extent.virt <= last)
    }

    pub(crate) fn remove(&mut self, virt: u64, last: u64) -> Vec<Extent> {
        let range = self.cut(virt, last);
        self.0.drain(range).collect()
    }

    pub(crate) fn change(&mut self, virt: u64, last: u64, change: impl Fn(&mut Extent)) {
        let range = self.cut(virt, last);
        self.0[range].iter_mut().for_each(change);
    }
}

/// Joins extents that are adjacent in virtual and physical addresses and have equal attributes.
pub(crate) fn joined(extents: impl IntoIterator<Item = Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(before)
                if before.virt.wrapping_add(before.bytes) == extent.virt
                    && before.phys + before.bytes == extent.phys
                    && before.attributes == extent.attributes =>
            {
                before.bytes += extent.bytes;
            }
            _ => joined.push(extent),
        }
    }
    joined
}

impl PageAttributes {
    pub(crate) fn of(translation: Translation) -> PageAttributes {
        let Translation { writable, executable, user, global, is_memory, accessed, dirty, .. } =
            translation;
        PageAttributes { writable, executable, user, global, is_memory, accessed, dirty }
    }
}
