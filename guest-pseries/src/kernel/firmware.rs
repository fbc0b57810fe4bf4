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
/// device tree to `buffer`.
///
/// # Errors
/// The hypercall's status, if it is not 0.
pub(super) fn client_architecture_support(support: &[u8], buffer: &mut [u8]) -> Result<(), i64> {
    let args = [support.as_ptr() as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64, 0];
    // SAFETY: the hypervisor reads only `support`, and writes only to `buffer`.
    match unsafe { hypercall(CLIENT_ARCHITECTURE_SUPPORT, args) } {
        0 => Ok(()),
        status => Err(status),
    }
}

/// The machine's firmware.
pub(super) struct Machine(());

impl Machine {
    /// Returns the machine's firmware.
    ///
    /// # Safety
    /// The caller makes only calls by [`Firmware::call`] whose arguments are no addresses of memory:
    /// the firmware would access that memory.
    pub(super) const unsafe fn new() -> Machine {
        Machine(())
    }
}

/// Makes an RTAS call with a block on the stack, which lies below 4 GiB like the whole kernel. If the
/// block has no room for the arguments and the results, makes no call, and the results are -1, a
/// hardware error.
///
/// # Safety
/// If an argument is an address, the firmware may access the memory there as the call requires.
unsafe fn rtas(token: u32, args: &[u32], results: &mut [u32]) {
    let mut block = [0_u32; BLOCK_WORDS];
    let header = [token, len_of(args), len_of(results)];
    if header.len() + args.len() + results.len() > block.len() {
        results.fill((-1_i32).cast_unsigned());
        return;
    }
    for (word, value) in block.iter_mut().zip(header.iter().chain(args)) {
        *word = value.to_be();
    }
    // Preset the results to -1, a hardware error. They keep this value if the hypercall fails.
    let first = header.len() + args.len();
    for word in block.iter_mut().skip(first) {
        *word = (-1_i32).cast_unsigned().to_be();
    }
    // SAFETY: the block has room for the declared numbers of arguments and results. The caller has
    // promised the rest.
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
        // SAFETY: the caller of `new` has promised that no argument is an address.
        unsafe { rtas(token, args, results) }
    }

    fn configure_connector(&mut self, token: u32, area: &mut WorkArea) -> i32 {
        let mut status = [0];
        // SAFETY: of the kernel's memory the firmware accesses only the area.
        unsafe { rtas(token, &[address(area), 0], &mut status) };
        core::hint::black_box(&mut *area);
        status[0].cast_signed()
    }

    fn check_exception(&mut self, token: u32, args: [u32; 4], log: &mut [u8]) -> i32 {
        let mut status = [0];
        let [vector, information, mask, critical] = args;
        let len = u32::try_from(log.len()).unwrap_or(0);
        let args = [vector, information, mask, critical, address(log), len];
        // SAFETY: of the kernel's memory the firmware writes only the log.
        unsafe { rtas(token, &args, &mut status) };
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
            // SAFETY: the two words are no addresses, but a mask of the events that may switch the
            // machine on again. All may.
            unsafe { rtas(token, &[u32::MAX, u32::MAX], &mut [0]) };
        }
    }
}
