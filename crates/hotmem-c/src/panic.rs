//! What a bug in the engine ends in.

use crate::explain::Buffer;
use core::ffi::c_char;
use core::panic::PanicInfo;

unsafe extern "C" {
    /// The kernel's function for a bug in the engine. The text ends after `len` bytes, without a
    /// zero.
    fn hotmem_panic(text: *const c_char, len: usize);
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut text = [0; 256];
    let len = Buffer::new(&mut text).print(info);
    loop {
        // SAFETY: the text lives as long as the call. The function is not to return.
        unsafe { hotmem_panic(text.as_ptr().cast(), len) };
    }
}
