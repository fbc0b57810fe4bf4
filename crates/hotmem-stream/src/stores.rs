//! The choice of store instructions.

use crate::arch;
use core::fmt;

/// The store instructions of a stream. A program chooses them once at start and passes the value
/// along. The compiler resolves a constant.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stores(Kind);

/// The kinds of stores, from the plainest to the widest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(dead_code, reason = "each architecture has some of them")]
pub(crate) enum Kind {
    Ordinary,
    Stnp,
    Movnti,
    Avx2,
    Avx512,
}

impl Stores {
    /// Ordinary stores, through the caches: the portable form.
    pub const ORDINARY: Stores = Stores(Kind::Ordinary);

    /// Stores that bypass the caches and use general registers only, so that they may be used
    /// anywhere, also in a kernel: `movnti` on x86-64, `stnp` on AArch64, ordinary stores
    /// elsewhere.
    pub const GENERAL: Stores = Stores(arch::GENERAL);

    /// Returns the best stores that are always safe: vector stores if the target lets the compiler
    /// use vector registers, as in user space, otherwise [`Stores::GENERAL`].
    #[must_use]
    pub fn best() -> Stores {
        if cfg!(target_feature = "sse2") {
            // SAFETY: the compiler itself uses vector registers wherever it likes, so the running
            // code owns them. `vector` checks that the system has enabled them.
            unsafe { Stores::vector() }
        } else {
            Stores::GENERAL
        }
    }

    /// Returns the widest stores that the processor has and the system has enabled: AVX-512, AVX2
    /// or [`Stores::GENERAL`]. It executes CPUID, which is slow under a hypervisor, so call it
    /// once.
    ///
    /// # Safety
    /// Wherever the value is used, the code must be allowed to change vector registers: always in
    /// user space, in a kernel only between saving and restoring them.
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

    /// Returns its name: `ordinary`, `stnp`, `movnti`, `avx2` or `avx512`.
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
