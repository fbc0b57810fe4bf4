//! Handles exceptions. This kernel causes no exceptions on purpose, so the first exception ends the
//! run, and the report has its number and address. Without handlers the processor would execute
//! arbitrary bytes at the exception's vector.

use super::exit::give_up;

/// All vectors of a processor with the MMU off.
const VECTORS: [u32; 16] = [
    0x100, 0x200, 0x300, 0x380, 0x400, 0x480, 0x500, 0x600, 0x700, 0x800, 0x900, 0xa00, 0xc00,
    0xd00, 0xf20, 0xf40,
];

unsafe extern "C" {
    fn exception();
}

#[repr(C, align(16))]
struct Stack([u8; 0x4000]);

static mut STACK: Stack = Stack([0; 0x4000]);

core::arch::global_asm!(
    ".globl __exception_stack",
    ".set __exception_stack, {stack} + 0x3f00",
    stack = sym STACK,
);

/// Writes instructions to each vector. They are big-endian, because the processor takes exceptions
/// in big-endian mode.
pub(super) fn install() {
    let handler = exception as *const () as u64;
    let high = u32::try_from(handler >> 16).unwrap_or(0);
    let low = u32::try_from(handler & 0xffff).unwrap_or(0);
    for vector in VECTORS {
        let code = [
            0x3860_0000 | vector, // li     r3, vector
            0x7cba_02a6,          // mfsrr0 r5
            0x7cdb_02a6,          // mfsrr1 r6
            0x3c80_0000 | high,   // lis    r4, handler >> 16
            0x6084_0000 | low,    // ori    r4, r4, handler & 0xffff
            0x7c89_03a6,          // mtctr  r4
            0x4e80_0420,          // bctr
        ];
        let target: *mut u32 = core::ptr::with_exposed_provenance_mut(vector as usize);
        for (nth, word) in code.into_iter().enumerate() {
            // SAFETY: nothing else uses the memory of the vectors: the kernel does not call Open
            // Firmware, and the boot map reserves that memory.
            unsafe { target.add(nth).write_volatile(word.to_be()) };
        }
    }
    // SAFETY: the instructions only make the written code visible to instruction fetches.
    unsafe { core::arch::asm!("sync", "isync") };
}

/// Handles all exceptions: ends the run. `entry.s` calls this function.
#[unsafe(no_mangle)]
extern "C" fn exception_taken(vector: u64, _: u64, address: u64, srr1: u64) -> ! {
    give_up(format_args!("exception {vector:#x} at {address:#x}, SRR1 {srr1:#x}"))
}
