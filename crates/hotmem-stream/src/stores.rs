//! The choice of store instructions.

use crate::arch;
use core::fmt;

/// The kind of store instructions of a stream. A program chooses the kind at start, because some
/// functions that choose it execute CPUID. If the value is a constant, the compiler removes the
/// branches on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stores(Kind);

/// The kinds of stores, from the plainest to the widest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(dead_code, reason = "each architecture has only some of these kinds")]
pub(crate) enum Kind {
    Ordinary,
    Stnp,
    Movnti,
    Avx2,
    Avx512,
}

impl Stores {
    /// Ordinary stores, which fill cache lines. All architectures have them.
    pub const ORDINARY: Stores = Stores(Kind::Ordinary);

    /// Stores that bypass the caches and use only general registers, so that any code may use them,
    /// including a kernel: `movnti` on x86-64, `stnp` on AArch64, ordinary stores on other
    /// architectures.
    pub const GENERAL_REGISTERS: Stores = Stores(arch::GENERAL_REGISTERS);

    /// Returns the widest stores that need no `unsafe`: vector stores if the target lets the
    /// compiler use vector registers, as in user space, and [`Stores::GENERAL_REGISTERS`]
    /// otherwise.
    #[must_use]
    pub fn best() -> Stores {
        if cfg!(target_feature = "sse2") {
            // SAFETY: the compiler may use vector registers anywhere, so this code may change them.
            // `vector` checks that the system has enabled them.
            unsafe { Stores::vector() }
        } else {
            Stores::GENERAL_REGISTERS
        }
    }

    /// Returns the widest stores that the processor has and the system has enabled: AVX-512, AVX2
    /// or [`Stores::GENERAL_REGISTERS`]. This function executes CPUID, which is slow under a
    /// hypervisor, so a program should call it only at start.
    ///
    /// # Safety
    /// All code that uses the value must be allowed to change vector registers. In user space all
    /// code is. In a kernel, only code between saving and restoring these registers is.
    #[must_use]
    pub unsafe fn vector() -> Stores {
        Stores(arch::widest())
    }

    /// Returns all usable kinds, from the plainest to [`Stores::vector`], for tests and
    /// measurements.
    ///
    /// # Safety
    /// As for [`Stores::vector`].
    pub unsafe fn all() -> impl Iterator<Item = Stores> + Clone {
        let widest = arch::widest();
        arch::ALL.iter().copied().filter(move |&kind| kind <= widest).map(Stores)
    }

    /// Returns the name of the kind: `ordinary`, `stnp`, `movnti`, `avx2` or `avx512`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Ordinary => "ordinary",
            Kind::Stnp => "stnp",
            Kind::Movnti => "movnti",
            Kind::Avx2 => "avx2",
            Kind::Avx512 => "avx512",
        }
    }

    pub(crate) const fn kind(self) -> Kind {
        self.0
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
