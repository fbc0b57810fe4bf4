//! Tells valgrind's callgrind, under which this program may run, which instructions to count.
//!
//! A request to valgrind is a sequence of instructions that changes nothing on a processor.
//! Valgrind's header documents it; valgrind finds the number of the request in memory.

/// Whether this program can tell valgrind which instructions to count.
pub(super) const IS_SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The first request of callgrind.
const CALLGRIND: u64 = 0x4354_0000;
const DUMP: u64 = CALLGRIND;
const START_INSTRUMENTATION: u64 = CALLGRIND + 4;
const STOP_INSTRUMENTATION: u64 = CALLGRIND + 5;

/// Lets valgrind count instructions from here on.
pub(super) fn start() {
    request(START_INSTRUMENTATION);
}

/// Lets valgrind count no more instructions.
pub(super) fn stop() {
    request(STOP_INSTRUMENTATION);
}

/// Lets valgrind write the number of instructions since the start or the previous call.
#[inline(always)]
pub(super) fn end_part() {
    request(DUMP);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn request(number: u64) {
    let request = [number, 0, 0, 0, 0, 0];
    // SAFETY: without valgrind, the sequence rotates rdi by 128 bits in total, and exchanges rbx with
    // itself. With valgrind, the request reads the array and writes rdx.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const request,
            inout("rdx") 0_u64 => _,
            options(nostack),
        );
    }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn request(number: u64) {
    let request = [number, 0, 0, 0, 0, 0];
    // SAFETY: without valgrind, the sequence rotates x12 by 128 bits in total, and copies x10 to
    // itself. With valgrind, the request reads the array and writes x3.
    unsafe {
        core::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") &raw const request,
            inout("x3") 0_u64 => _,
            options(nostack),
        );
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn request(_: u64) {}
