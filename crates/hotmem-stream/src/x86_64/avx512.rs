//! AVX-512: stores a whole cache line at a time. Uses registers 16 and higher, because dirty upper
//! halves of lower registers would slow down SSE instructions.

use super::line::{LINE_BYTES, LINE_WORDS};
use core::arch::asm;

/// Copies `lines` lines.
///
/// # Safety
/// The processor has AVX-512F and the caller may use it; `lines` lines, at least one, may be read
/// at `from` and written at `to`, which is aligned to a line; nothing else accesses them before the
/// drain.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u64, from: *const u64, lines: usize) {
    // SAFETY: the caller guarantees it.
    unsafe {
        asm!(
            "2:",
            "vmovdqu64 zmm16, [{from}]",
            "vmovntdq [{to}], zmm16",
            "add {from}, {LINE_BYTES}",
            "add {to}, {LINE_BYTES}",
            "dec {lines}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            lines = inout(reg) lines => _,
            LINE_BYTES = const LINE_BYTES,
            out("zmm16") _,
            options(nostack),
        );
    }
}

/// Writes `count` lines: `first`, and then each the sum of the previous line and `step`.
///
/// Reads `first` and `step` word by word. The caller has just written them as words. One vector
/// load would wait until these stores reach the cache, after all outstanding stores.
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
            "vmovq xmm16, [{first}]",
            "vmovhps xmm16, xmm16, [{first} + 8]",
            "vmovq xmm18, [{first} + 16]",
            "vmovhps xmm18, xmm18, [{first} + 24]",
            "vinserti32x4 zmm16, zmm16, xmm18, 1",
            "vmovq xmm18, [{first} + 32]",
            "vmovhps xmm18, xmm18, [{first} + 40]",
            "vinserti32x4 zmm16, zmm16, xmm18, 2",
            "vmovq xmm18, [{first} + 48]",
            "vmovhps xmm18, xmm18, [{first} + 56]",
            "vinserti32x4 zmm16, zmm16, xmm18, 3",
            "vmovq xmm17, [{step}]",
            "vmovhps xmm17, xmm17, [{step} + 8]",
            "vmovq xmm18, [{step} + 16]",
            "vmovhps xmm18, xmm18, [{step} + 24]",
            "vinserti32x4 zmm17, zmm17, xmm18, 1",
            "vmovq xmm18, [{step} + 32]",
            "vmovhps xmm18, xmm18, [{step} + 40]",
            "vinserti32x4 zmm17, zmm17, xmm18, 2",
            "vmovq xmm18, [{step} + 48]",
            "vmovhps xmm18, xmm18, [{step} + 56]",
            "vinserti32x4 zmm17, zmm17, xmm18, 3",
            "2:",
            "vmovntdq [{to}], zmm16",
            "vpaddq zmm16, zmm16, zmm17",
            "add {to}, {LINE_BYTES}",
            "dec {count}",
            "jnz 2b",
            first = in(reg) first,
            step = in(reg) step,
            to = inout(reg) to => _,
            count = inout(reg) count => _,
            LINE_BYTES = const LINE_BYTES,
            out("zmm16") _,
            out("zmm17") _,
            out("zmm18") _,
            options(nostack),
        );
    }
}
