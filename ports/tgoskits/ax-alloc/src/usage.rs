//! Counts the bytes in use, by kind.

use core::array;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use strum::{IntoStaticStr, VariantArray};

/// What memory is used for.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, VariantArray, IntoStaticStr)]
pub enum UsageKind {
    /// Objects of the heap.
    RustHeap,
    /// Memory of an address space.
    VirtMem,
    /// The page cache of a file system.
    PageCache,
    /// Page tables.
    PageTable,
    /// Stacks of tasks.
    TaskStack,
    /// Memory that devices access.
    Dma,
    /// Memory of a [`GlobalPage`](crate::GlobalPage).
    Global,
}

const KINDS: usize = UsageKind::VARIANTS.len();

/// The number of bytes in use, by kind.
#[derive(Clone, Copy)]
pub struct Usages([usize; KINDS]);

static USAGES: [AtomicUsize; KINDS] = [const { AtomicUsize::new(0) }; KINDS];

pub(crate) fn count(kind: UsageKind, bytes: usize) {
    // Relaxed: a statistic.
    USAGES[kind as usize].fetch_add(bytes, Ordering::Relaxed);
}

/// Returns false, and changes nothing, if fewer bytes of this kind are in use: the caller has freed them
/// as another kind than they were allocated.
pub(crate) fn uncount(kind: UsageKind, bytes: usize) -> bool {
    let subtract = |used: usize| used.checked_sub(bytes);
    // Relaxed: a statistic.
    USAGES[kind as usize].try_update(Ordering::Relaxed, Ordering::Relaxed, subtract).is_ok()
}

impl Usages {
    /// Returns the number of bytes in use now.
    pub(crate) fn current() -> Usages {
        Usages(array::from_fn(|kind| USAGES[kind].load(Ordering::Relaxed)))
    }

    /// Returns the number of bytes in use for this.
    pub fn get(&self, kind: UsageKind) -> usize {
        self.0[kind as usize]
    }
}

impl fmt::Debug for Usages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = UsageKind::VARIANTS.iter().map(<&'static str>::from);
        f.debug_map().entries(names.zip(&self.0)).finish()
    }
}
