//! Which instructions write.

use crate::arch;
use core::fmt;

/// The instructions that write. Chosen once, at start, and then passed along; a constant is
/// resolved by the compiler.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stores(Kind);

/// From the plainest to the widest.
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

    /// What bypasses the caches with general registers alone, so that it may be used anywhere, in
    /// a kernel too: `movnti` on x86-64, `stnp` on AArch64, elsewhere ordinary stores.
    pub const GENERAL: Stores = Stores(arch::GENERAL);

    /// The best that may be used without asking: with vector registers where the target lets the
    /// compiler use them, as in user space, otherwise [`Stores::GENERAL`].
    #[must_use]
    pub fn best() -> Stores {
        if cfg!(target_feature = "sse2") {
            // SAFETY: the compiler itself uses vector registers wherever it likes, so they belong
            // to whoever runs; `vector` sees to it that the system has enabled them.
            unsafe { Stores::vector() }
        } else {
            Stores::GENERAL
        }
    }

    /// The widest that the processor has and the system has enabled: AVX-512, AVX2 or
    /// [`Stores::GENERAL`]. It asks CPUID, which is slow under a hypervisor: call it once.
    ///
    /// # Safety
    /// Wherever the value is put to use, vector registers must be free to be changed: in user
    /// space always, in a kernel only between saving and restoring them.
    #[must_use]
    pub unsafe fn vector() -> Stores {
        Stores(arch::widest())
    }

    /// Everything that may be used, from the plainest to [`Stores::vector`]; for tests and
    /// measurements.
    ///
    /// # Safety
    /// As for [`Stores::vector`].
    pub unsafe fn all() -> impl Iterator<Item = Stores> + Clone {
        let widest = arch::widest();
        arch::ALL.iter().copied().filter(move |&kind| kind <= widest).map(Stores)
    }

    /// Its name: `ordinary`, `stnp`, `movnti`, `avx2` or `avx512`.
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
