//! Defines the memory functions, such as `memcpy`, that compiled code calls. On this target the
//! compiler expects that a C library defines them, and this kernel has no C library.

type Word = u64;
const WORD_SIZE: usize = size_of::<Word>();

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, len: usize) -> *mut u8 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as C has it")]
    let byte = value as u8;
    let word = Word::from_ne_bytes([byte; WORD_SIZE]);
    let mut offset = 0;
    // SAFETY: the caller guarantees that `to` has `len` bytes.
    unsafe {
        while offset + WORD_SIZE <= len {
            to.add(offset).cast::<Word>().write_unaligned(word);
            offset += WORD_SIZE;
        }
        while offset < len {
            to.add(offset).write(byte);
            offset += 1;
        }
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    let mut offset = 0;
    // SAFETY: the caller guarantees that `to` and `from` have `len` bytes.
    unsafe {
        while offset + WORD_SIZE <= len {
            let word = from.add(offset).cast::<Word>().read_unaligned();
            to.add(offset).cast::<Word>().write_unaligned(word);
            offset += WORD_SIZE;
        }
        while offset < len {
            to.add(offset).write(from.add(offset).read());
            offset += 1;
        }
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if to.addr() <= from.addr() || to.addr() >= from.addr() + len {
        // SAFETY: the caller guarantees that `to` and `from` have `len` bytes. They may overlap,
        // because `memcpy` copies in ascending order, one word at a time: it reads each byte before
        // it overwrites the byte.
        return unsafe { memcpy(to, from, len) };
    }
    let mut offset = len;
    while offset > 0 {
        offset -= 1;
        // SAFETY: the caller guarantees that `to` and `from` have `len` bytes.
        unsafe { to.add(offset).write(from.add(offset).read()) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(first: *const u8, second: *const u8, len: usize) -> i32 {
    for offset in 0..len {
        // SAFETY: the caller guarantees that `first` and `second` have `len` bytes.
        let (first, second) = unsafe { (first.add(offset).read(), second.add(offset).read()) };
        if first != second {
            return i32::from(first) - i32::from(second);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(first: *const u8, second: *const u8, len: usize) -> i32 {
    // SAFETY: the caller guarantees that `first` and `second` have `len` bytes.
    unsafe { memcmp(first, second, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: the caller guarantees that `text` ends with a zero.
    while unsafe { text.add(len).read() } != 0 {
        len += 1;
    }
    len
}
