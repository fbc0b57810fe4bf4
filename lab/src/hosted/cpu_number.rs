//! Keeps a number for each thread, which a thread reads by two loads, as a kernel reads its CPU's
//! number.
//!
//! In a library, the compiler treats each use of a `thread_local!` as a function call, and so it
//! saves registers around the use. A kernel has no such cost, so on x86-64 the variable is defined
//! in assembly.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) use in_assembly::{get, set};
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) use in_rust::{get, set};

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod in_assembly {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tdata.hotmem_lab_number, \"awT\", @progbits",
        ".globl hotmem_lab_number",
        ".hidden hotmem_lab_number",
        ".balign 8",
        "hotmem_lab_number:",
        ".quad -1",
        ".size hotmem_lab_number, 8",
        ".popsection",
    );

    /// Returns the calling thread's number, which is `usize::MAX` until [`set`] changes it.
    #[inline(always)]
    pub(in crate::hosted) fn get() -> usize {
        let number;
        // SAFETY: the linker replaces the first load by the offset of the variable from the thread
        // pointer, which `fs` holds. The second load reads the calling thread's own variable.
        unsafe {
            asm!(
                "mov {number}, qword ptr [rip + hotmem_lab_number@GOTTPOFF]",
                "mov {number}, qword ptr fs:[{number}]",
                number = out(reg) number,
                options(readonly, nostack, preserves_flags),
            );
        }
        number
    }

    /// Changes the calling thread's number.
    #[inline]
    pub(in crate::hosted) fn set(number: usize) {
        // SAFETY: as in `get`. Only the calling thread accesses its variable.
        unsafe {
            asm!(
                "mov {offset}, qword ptr [rip + hotmem_lab_number@GOTTPOFF]",
                "mov qword ptr fs:[{offset}], {number}",
                offset = out(reg) _,
                number = in(reg) number,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod in_rust {
    use std::cell::Cell;

    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Returns the calling thread's number, which is `usize::MAX` until [`set`] changes it.
    #[inline]
    pub(in crate::hosted) fn get() -> usize {
        NUMBER.get()
    }

    /// Changes the calling thread's number.
    #[inline]
    pub(in crate::hosted) fn set(number: usize) {
        NUMBER.set(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_number_of_its_own() {
        set(5);
        let other_thread = std::thread::spawn(|| {
            let before = get();
            set(7);
            (before, get())
        });
        assert_eq!(other_thread.join().unwrap(), (usize::MAX, 7));
        assert_eq!(get(), 5);
    }
}
