//! Makes hypercalls, and RTAS calls by QEMU's own hypercall for them.

use hotmem_guest_pseries::rtas::Firmware;
use hotmem_guest_pseries::work_area::WorkArea;

/// QEMU's own hypercalls. RTAS takes the address of a block. Client-architecture-support takes the
/// addresses of its argument and of a buffer for the device tree, and the buffer's size.
const RTAS: u64 = 0xf000;
const CLIENT_ARCHITECTURE_SUPPORT: u64 = 0xf002;

/// The words of a block: the token, the numbers of arguments and results, the arguments and the
/// results.
const BLOCK: usize = 16;

mod asm {
    unsafe extern "C" {
        pub(super) fn hypercall(number: u64, args: *mut [u64; 4]) -> i64;
    }
}

/// Makes any hypercall, and returns its status only.
///
/// # Safety
/// The arguments must satisfy the requirements of the hypercall.
pub(super) unsafe fn hypercall(number: u64, mut args: [u64; 4]) -> i64 {
    // SAFETY: the caller guarantees it; the arguments are four words.
    unsafe { asm::hypercall(number, &raw mut args) }
}

/// Negotiates the supported features. The firmware writes the resulting device tree to `buffer`,
/// after four bytes of version.
///
/// # Errors
/// The hypercall's status.
pub(super) fn client_architecture_support(
    support: &[u8],
    buffer: *mut u8,
    len: usize,
) -> Result<(), i64> {
    let args = [support.as_ptr() as u64, buffer as u64, len as u64, 0];
    // SAFETY: the hypervisor reads the argument and writes the buffer, which are memory of those
    // lengths.
    match unsafe { hypercall(CLIENT_ARCHITECTURE_SUPPORT, args) } {
        0 => Ok(()),
        status => Err(status),
    }
}

/// The machine's firmware.
pub(super) struct Machine;

/// Makes an RTAS call with a block on the stack, which lies below 4 GiB like the whole kernel.
fn rtas(token: u32, args: &[u32], results: &mut [u32]) {
    let mut block = [0_u32; BLOCK];
    let head = [token, len_of(args), len_of(results)];
    for (word, value) in block.iter_mut().zip(head.iter().chain(args)) {
        *word = value.to_be();
    }
    // If the hypercall fails, this status stays: a hardware error.
    let first = head.len() + args.len();
    for word in block.iter_mut().skip(first) {
        *word = (-1_i32).cast_unsigned().to_be();
    }
    // SAFETY: the block has the declared length, and the calls are those of PAPR. The callers below
    // ensure that their arguments name valid memory.
    unsafe { hypercall(RTAS, [(&raw mut block) as u64, 0, 0, 0]) };
    let block = core::hint::black_box(block);
    for (result, word) in results.iter_mut().zip(block.iter().skip(first)) {
        *result = u32::from_be(*word);
    }
}

fn len_of(words: &[u32]) -> u32 {
    u32::try_from(words.len()).unwrap_or(u32::MAX)
}

/// Returns an address within the kernel, which lies below 4 GiB.
fn address<T: ?Sized>(of: *mut T) -> u32 {
    u32::try_from(of.cast::<u8>() as u64).unwrap_or(0)
}

impl Firmware for Machine {
    fn call(&mut self, token: u32, args: &[u32], results: &mut [u32]) {
        rtas(token, args, results);
    }

    fn configure_connector(&mut self, token: u32, area: &mut WorkArea) -> i32 {
        let mut status = [0];
        // The firmware reads and writes the area only.
        rtas(token, &[address(area), 0], &mut status);
        core::hint::black_box(&mut *area);
        status[0].cast_signed()
    }

    fn check_exception(&mut self, token: u32, args: [u32; 4], log: &mut [u8]) -> i32 {
        let mut status = [0];
        let [vector, information, mask, critical] = args;
        let len = u32::try_from(log.len()).unwrap_or(0);
        // The firmware writes the log only.
        let args = [vector, information, mask, critical, address(log), len];
        rtas(token, &args, &mut status);
        core::hint::black_box(&mut *log);
        status[0].cast_signed()
    }
}

/// The token of `power-off`, for ends of a run without access to the device tree.
static POWER_OFF: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Stores the token of `power-off`.
pub(super) fn remember_power_off(token: u32) {
    // One CPU: program order is enough.
    POWER_OFF.store(token, core::sync::atomic::Ordering::Relaxed);
}

/// Switches the machine off.
pub(super) fn halt() -> ! {
    let token = POWER_OFF.load(core::sync::atomic::Ordering::Relaxed);
    loop {
        if token != 0 {
            rtas(token, &[u32::MAX, u32::MAX], &mut [0]);
        }
    }
}
