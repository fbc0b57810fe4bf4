//! Calls the kernel when the engine panics.

use crate::explain::Buffer;
use core::ffi::c_char;
use core::panic::PanicInfo;

unsafe extern "C" {
    /// The kernel's function that is called when the engine panics, which happens only if the engine
    /// has a bug. The text has `len` bytes and no terminating NUL.
    fn hotmem_panic(text: *const c_char, len: usize);
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = [0; 256];
    let len = Buffer::new(&mut text).print(info);
    loop {
        // SAFETY: `text` lives as long as the call, and has `len` bytes.
        unsafe { hotmem_panic(text.as_ptr().cast(), len) };
    }
}
