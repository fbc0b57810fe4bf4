//! Fills memory with one byte in several ways. The fastest is the limit of the bench.

use std::mem::MaybeUninit;

/// A way to fill memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    /// By `memset`, as the C library or the compiler provides it.
    Ordinary,
    /// By stores of 8 bytes that bypass the caches.
    #[cfg(target_arch = "x86_64")]
    Movnti,
    /// By stores of 32 bytes that bypass the caches.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// By stores of 64 bytes that bypass the caches.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Fill {
    /// Returns all fills that this processor supports.
    pub(super) fn all() -> Vec<Fill> {
        let mut all = vec![Fill::Ordinary];
        #[cfg(target_arch = "x86_64")]
        {
            all.push(Fill::Movnti);
            if is_x86_feature_detected!("avx2") {
                all.push(Fill::Avx2);
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Fill::Avx512);
            }
        }
        all
    }

    /// Returns the fill that uses general registers only.
    pub(super) const fn general() -> Fill {
        #[cfg(target_arch = "x86_64")]
        return Fill::Movnti;
        #[cfg(not(target_arch = "x86_64"))]
        Fill::Ordinary
    }

    /// Fills `slots`, which must be whole cache lines.
    ///
    /// # Panics
    /// If `slots` begins or ends within a cache line.
    pub(super) fn fill<T>(self, slots: &mut [MaybeUninit<T>]) {
        let bytes = size_of_val(slots);
        let start = slots.as_mut_ptr().cast::<u8>();
        assert!(
            start.addr().is_multiple_of(LINE) && bytes.is_multiple_of(LINE),
            "the slots are whole cache lines"
        );
        // SAFETY: `slots` may be written, and consists of whole lines. `all` returns `Avx2` and
        // `Avx512` only if the processor has the instructions.
        unsafe {
            match self {
                Fill::Ordinary => start.write_bytes(BYTE, bytes),
                #[cfg(target_arch = "x86_64")]
                Fill::Movnti => x86_64::movnti(start, bytes),
                #[cfg(target_arch = "x86_64")]
                Fill::Avx2 => x86_64::avx2(start, bytes),
                #[cfg(target_arch = "x86_64")]
                Fill::Avx512 => x86_64::avx512(start, bytes),
            }
        }
    }
}

/// The size of a cache line in bytes.
const LINE: usize = 64;
/// The byte that is written.
const BYTE: u8 = 5;

/// The fills by the compiler's intrinsics. Each ends with a fence.
#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{BYTE, LINE};
    use std::arch::x86_64::*;

    /// # Safety
    /// `start` is aligned to a cache line, `bytes` is a multiple of the line's size, and `bytes`
    /// bytes may be written at `start`.
    #[inline(never)]
    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn movnti(start: *mut u8, bytes: usize) {
        let word = i64::from_ne_bytes([BYTE; 8]);
        for line in (0..bytes).step_by(LINE) {
            for offset in (line..line + LINE).step_by(8) {
                // SAFETY: the caller guarantees that the line may be written.
                unsafe { _mm_stream_si64(start.add(offset).cast(), word) };
            }
        }
        _mm_sfence();
    }

    /// # Safety
    /// The conditions of [`movnti`] hold, and the processor has AVX2.
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(start: *mut u8, bytes: usize) {
        let half_line = _mm256_set1_epi8(BYTE.cast_signed());
        for offset in (0..bytes).step_by(LINE) {
            // SAFETY: the caller guarantees that the line may be written.
            unsafe {
                _mm256_stream_si256(start.add(offset).cast(), half_line);
                _mm256_stream_si256(start.add(offset + 32).cast(), half_line);
            }
        }
        _mm_sfence();
    }

    /// # Safety
    /// The conditions of [`movnti`] hold, and the processor has AVX-512F.
    #[inline(never)]
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(start: *mut u8, bytes: usize) {
        let line = _mm512_set1_epi32(i32::from_ne_bytes([BYTE; 4]));
        for offset in (0..bytes).step_by(LINE) {
            // SAFETY: the caller guarantees that the line may be written.
            unsafe { _mm512_stream_si512(start.add(offset).cast(), line) };
        }
        _mm_sfence();
    }
}
