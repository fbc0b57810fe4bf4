//! The memory functions that the compiler calls. The target has none without a C library.

type Word = u64;
const WORD: usize = size_of::<Word>();

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, len: usize) -> *mut u8 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as C has it")]
    let byte = value as u8;
    let word = Word::from_ne_bytes([byte; WORD]);
    let mut at = 0;
    // SAFETY: the caller has `len` bytes there.
    unsafe {
        while at + WORD <= len {
            to.add(at).cast::<Word>().write_unaligned(word);
            at += WORD;
        }
        while at < len {
            to.add(at).write(byte);
            at += 1;
        }
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    let mut at = 0;
    // SAFETY: the caller has `len` bytes at both places.
    unsafe {
        while at + WORD <= len {
            let word = from.add(at).cast::<Word>().read_unaligned();
            to.add(at).cast::<Word>().write_unaligned(word);
            at += WORD;
        }
        while at < len {
            to.add(at).write(from.add(at).read());
            at += 1;
        }
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if to.addr() <= from.addr() || to.addr() >= from.addr() + len {
        // SAFETY: as the caller says; copying upwards reads each byte before it is overwritten, as
        // words are copied one at a time.
        return unsafe { memcpy(to, from, len) };
    }
    let mut at = len;
    while at > 0 {
        at -= 1;
        // SAFETY: the caller has `len` bytes at both places.
        unsafe { to.add(at).write(from.add(at).read()) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, len: usize) -> i32 {
    for at in 0..len {
        // SAFETY: the caller has `len` bytes at both places.
        let (one, other) = unsafe { (one.add(at).read(), other.add(at).read()) };
        if one != other {
            return i32::from(one) - i32::from(other);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, len: usize) -> i32 {
    // SAFETY: as the caller says.
    unsafe { memcmp(one, other, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the caller has a zero there.
    while unsafe { text.add(len).read() } != 0 {
        len += 1;
    }
    len
}
