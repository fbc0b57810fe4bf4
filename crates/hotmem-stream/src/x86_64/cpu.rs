//! Detects the store instructions that the processor has and the system has enabled.

use crate::stores::Kind;
use core::arch::{
    asm,
    x86_64::{__cpuid, __cpuid_count},
};

/// Returns the widest kind of stores that may be used. CPUID must report the instructions, and XCR0
/// must enable the state of the registers. XCR0 may be read if OSXSAVE is set (Intel SDM volume 1,
/// 14.3 and 15.3).
pub(crate) fn widest() -> Kind {
    const OSXSAVE: u32 = 1 << 27;
    const AVX2: u32 = 1 << 5;
    const AVX512F: u32 = 1 << 16;
    const XMM_YMM: u32 = 0b0000_0110;
    const ZMM: u32 = 0b1110_0000;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return Kind::Movnti;
    }
    let (features, enabled) = (__cpuid_count(7, 0).ebx, xcr0());
    let has = |feature: u32, state: u32| features & feature != 0 && enabled & state == state;
    if has(AVX512F, XMM_YMM | ZMM) {
        Kind::Avx512
    } else if has(AVX2, XMM_YMM) {
        Kind::Avx2
    } else {
        Kind::Movnti
    }
}

/// Returns the low half of XCR0. The caller must have checked OSXSAVE.
fn xcr0() -> u32 {
    let low: u32;
    // SAFETY: the caller has checked OSXSAVE, and the instruction only reads a register.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _,
             options(nomem, nostack, preserves_flags));
    }
    low
}
