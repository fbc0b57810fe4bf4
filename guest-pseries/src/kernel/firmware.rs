//! Makes hypercalls and RTAS calls. An RTAS call is made by a hypercall that only QEMU has.

use hotmem_guest_pseries::rtas::Firmware;
use hotmem_guest_pseries::work_area::WorkArea;

/// QEMU's hypercall for RTAS calls. It takes the physical address of a block; see [`BLOCK_WORDS`].
const RTAS: u64 = 0xf000;
/// QEMU's hypercall for `ibm,client-architecture-support`. It takes the addresses of the argument
/// and of a buffer for the device tree, and the buffer's size.
const CLIENT_ARCHITECTURE_SUPPORT: u64 = 0xf002;

/// The number of words of a block: the token, the number of arguments, the number of results, the
/// arguments, and the results.
const BLOCK_WORDS: usize = 16;

mod asm {
    unsafe extern "C" {
        pub(super) fn hypercall(number: u64, args: *mut [u64; 4]) -> i64;
    }
}

/// Makes a hypercall. Returns its status; its other results are dropped.
///
/// # Safety
/// The arguments must satisfy the requirements of the hypercall.
pub(super) unsafe fn hypercall(number: u64, mut args: [u64; 4]) -> i64 {
    // SAFETY: the caller guarantees that `args` satisfy the requirements of the hypercall. `args`
    // are the four words that the assembly code reads and writes.
    unsafe { asm::hypercall(number, &raw mut args) }
}

/// Negotiates the supported features. The firmware writes a version of four bytes and the resulting
/// device tree to `buffer`, which has `len` bytes.
///
/// # Errors
/// The hypercall's status, if it is not 0.
pub(super) fn client_architecture_support(
    support: &[u8],
    buffer: *mut u8,
    len: usize,
) -> Result<(), i64> {
    let args = [support.as_ptr() as u64, buffer as u64, len as u64, 0];
    // SAFETY: the hypervisor reads only `support`, and writes only the `len` bytes of `buffer`.
    match unsafe { hypercall(CLIENT_ARCHITECTURE_SUPPORT, args) } {
        0 => Ok(()),
        status => Err(status),
    }
}

/// The machine's firmware.
pub(super) struct Machine;

/// Makes an RTAS call with a block on the stack, which lies below 4 GiB like the whole kernel.
fn rtas(token: u32, args: &[u32], results: &mut [u32]) {
    let mut block = [0_u32; BLOCK_WORDS];
    let header = [token, len_of(args), len_of(results)];
    for (word, value) in block.iter_mut().zip(header.iter().chain(args)) {
        *word = value.to_be();
    }
    // Preset the results to -1, a hardware error. They keep this value if the hypercall fails.
    let first = header.len() + args.len();
    for word in block.iter_mut().skip(first) {
        *word = (-1_i32).cast_unsigned().to_be();
    }
    // SAFETY: the block has the declared numbers of arguments and results. Arguments that are
    // addresses come from the callers below, which pass addresses of memory that they have
    // borrowed.
    unsafe { hypercall(RTAS, [(&raw mut block) as u64, 0, 0, 0]) };
    let block = core::hint::black_box(block);
    for (result, word) in results.iter_mut().zip(block.iter().skip(first)) {
        *result = u32::from_be(*word);
    }
}

fn len_of(words: &[u32]) -> u32 {
    u32::try_from(words.len()).unwrap_or(u32::MAX)
}

/// Returns the address of memory of the kernel, all of which lies below 4 GiB.
fn address<T: ?Sized>(pointer: *mut T) -> u32 {
    u32::try_from(pointer.cast::<u8>() as u64).unwrap_or(0)
}

impl Firmware for Machine {
    fn call(&mut self, token: u32, args: &[u32], results: &mut [u32]) {
        rtas(token, args, results);
    }

    fn configure_connector(&mut self, token: u32, area: &mut WorkArea) -> i32 {
        let mut status = [0];
        // Of the kernel's memory the firmware accesses only the area.
        rtas(token, &[address(area), 0], &mut status);
        core::hint::black_box(&mut *area);
        status[0].cast_signed()
    }

    fn check_exception(&mut self, token: u32, args: [u32; 4], log: &mut [u8]) -> i32 {
        let mut status = [0];
        let [vector, information, mask, critical] = args;
        let len = u32::try_from(log.len()).unwrap_or(0);
        // Of the kernel's memory the firmware writes only the log.
        let args = [vector, information, mask, critical, address(log), len];
        rtas(token, &args, &mut status);
        core::hint::black_box(&mut *log);
        status[0].cast_signed()
    }
}

/// The token of `power-off`; 0 if it is not known yet. [`halt`] reads it, because a run may end
/// where the device tree is not at hand.
static POWER_OFF: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Stores the token of `power-off`.
pub(super) fn remember_power_off(token: u32) {
    // Relaxed: there is one CPU, so program order is enough.
    POWER_OFF.store(token, core::sync::atomic::Ordering::Relaxed);
}

/// Switches the machine off, or loops forever if the token of `power-off` is not known.
pub(super) fn halt() -> ! {
    let token = POWER_OFF.load(core::sync::atomic::Ordering::Relaxed);
    loop {
        if token != 0 {
            // The two words are a mask of the events that may switch the machine on again. All may.
            rtas(token, &[u32::MAX, u32::MAX], &mut [0]);
        }
    }
}
