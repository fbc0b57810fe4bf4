//! AVX2: stores half a cache line at a time. The upper halves of the registers are cleared at the
//! end, because dirty upper halves would slow down SSE instructions.

use super::line::{LINE_BYTES, LINE_WORDS};
use core::arch::asm;

/// Copies `lines` lines.
///
/// # Safety
/// The processor has AVX2 and the caller may use it; `lines` lines, at least one, may be read at
/// `from` and written at `to`, which is aligned to a line; nothing else accesses them before the
/// drain.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u64, from: *const u64, lines: usize) {
    // SAFETY: the caller guarantees it.
    unsafe {
        asm!(
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovntdq [{to}], ymm0",
            "vmovntdq [{to} + 32], ymm1",
            "add {from}, {LINE_BYTES}",
            "add {to}, {LINE_BYTES}",
            "dec {lines}",
            "jnz 2b",
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            LINE_BYTES = const LINE_BYTES,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

/// Writes `count` lines: `first`, and then each the sum of the previous line and `step`. Reads
/// `first` and `step` word by word, for the reason in [`avx512`](super::avx512).
///
/// # Safety
/// As for [`copy`], of `count` lines at `to`.
#[inline(always)]
pub(super) unsafe fn fill(
    to: *mut u64,
    count: usize,
    first: &[u64; LINE_WORDS],
    step: &[u64; LINE_WORDS],
) {
    // SAFETY: the caller guarantees it. `first` and `step` have the size of a line.
    unsafe {
        asm!(
            "vmovq xmm0, [{first}]",
            "vmovhps xmm0, xmm0, [{first} + 8]",
            "vmovq xmm4, [{first} + 16]",
            "vmovhps xmm4, xmm4, [{first} + 24]",
            "vinserti128 ymm0, ymm0, xmm4, 1",
            "vmovq xmm1, [{first} + 32]",
            "vmovhps xmm1, xmm1, [{first} + 40]",
            "vmovq xmm4, [{first} + 48]",
            "vmovhps xmm4, xmm4, [{first} + 56]",
            "vinserti128 ymm1, ymm1, xmm4, 1",
            "vmovq xmm2, [{step}]",
            "vmovhps xmm2, xmm2, [{step} + 8]",
            "vmovq xmm4, [{step} + 16]",
            "vmovhps xmm4, xmm4, [{step} + 24]",
            "vinserti128 ymm2, ymm2, xmm4, 1",
            "vmovq xmm3, [{step} + 32]",
            "vmovhps xmm3, xmm3, [{step} + 40]",
            "vmovq xmm4, [{step} + 48]",
            "vmovhps xmm4, xmm4, [{step} + 56]",
            "vinserti128 ymm3, ymm3, xmm4, 1",
            "2:",
            "vmovntdq [{to}], ymm0",
            "vmovntdq [{to} + 32], ymm1",
            "vpaddq ymm0, ymm0, ymm2",
            "vpaddq ymm1, ymm1, ymm3",
            "add {to}, {LINE_BYTES}",
            "dec {count}",
            "jnz 2b",
            "vzeroupper",
            first = in(reg) first,
            step = in(reg) step,
            to = inout(reg) to => _,
            count = inout(reg) count => _,
            LINE_BYTES = const LINE_BYTES,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}
