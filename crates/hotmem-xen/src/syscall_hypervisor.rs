//! Makes hypercalls from a 64-bit PV kernel, as Xen's `arch-x86/xen-x86_64.h` defines.

use crate::abi::{DomId, Errno, MmuExtOp, MmuUpdate, Multicall, number};
use crate::hypervisor::{BatchRefused, Hypervisor};
use core::arch::asm;

/// The hypervisor under which this kernel runs. The `syscall` instruction calls it.
#[derive(Debug)]
pub struct SyscallHypervisor {
    calls: u64,
    flushes: u64,
}

impl SyscallHypervisor {
    /// Creates the access to the hypervisor.
    ///
    /// # Safety
    /// The caller runs as the kernel of a 64-bit Xen PV guest, and may change every page table
    /// entry that it passes to Xen. Xen protects itself, but does not protect the kernel's memory.
    #[must_use]
    pub const unsafe fn new() -> SyscallHypervisor {
        SyscallHypervisor { calls: 0, flushes: 0 }
    }

    /// Returns how many hypercalls were made.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns how many flushes were requested.
    #[must_use]
    pub const fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Returns Xen's first feature word, whose bits are [`features`](crate::features).
    ///
    /// # Errors
    /// The error that Xen returned.
    pub fn features(&mut self) -> Result<u32, Errno> {
        const XENVER_GET_FEATURES: u64 = 6;
        // `struct xen_feature_info`: the word's index, and the word.
        let mut info = [0_u32; 2];
        let pointer = info.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the hypercall reads and writes `info`.
        unsafe { self.call(number::XEN_VERSION, [XENVER_GET_FEATURES, pointer, 0, 0, 0])? };
        Ok(info[1])
    }

    /// Makes any hypercall, by its number.
    ///
    /// # Errors
    /// The error that Xen returned.
    ///
    /// # Safety
    /// The arguments must satisfy the requirements of the hypercall.
    pub unsafe fn call(&mut self, number: u64, args: [u64; 5]) -> Result<u64, Errno> {
        self.calls += 1;
        let result: i64;
        // SAFETY: the caller of `new` runs under Xen, which reads the arguments from these
        // registers, returns the result in rax, and changes rcx and r11, as the instruction does.
        // The caller of this function guarantees that the memory accesses are valid.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number => result,
                inlateout("rdi") args[0] => _,
                inlateout("rsi") args[1] => _,
                inlateout("rdx") args[2] => _,
                inlateout("r10") args[3] => _,
                inlateout("r8") args[4] => _,
                out("rcx") _,
                out("r11") _,
            );
        }
        Errno::of(result)
    }
}

/// Returns the address and the length of a slice. The length fits, because a batch has at most 512
/// entries.
fn address_and_len<T>(slice: &[T]) -> (u64, u32) {
    let count = u32::try_from(slice.len()).unwrap_or(u32::MAX);
    (slice.as_ptr().expose_provenance() as u64, count)
}

fn batch_result(result: Result<u64, Errno>, entries_done: u32) -> Result<(), BatchRefused> {
    result.map(|_| ()).map_err(|errno| BatchRefused { entries_done: entries_done as usize, errno })
}

fn update_args(updates: &[MmuUpdate], entries_done: &mut u32, owner: DomId) -> [u64; 5] {
    let (pointer, count) = address_and_len(updates);
    [
        pointer,
        u64::from(count),
        core::ptr::from_mut(entries_done).expose_provenance() as u64,
        u64::from(owner.0),
        0,
    ]
}

fn ext_args(ops: &[MmuExtOp], entries_done: &mut u32) -> [u64; 5] {
    let (pointer, count) = address_and_len(ops);
    [
        pointer,
        u64::from(count),
        core::ptr::from_mut(entries_done).expose_provenance() as u64,
        u64::from(DomId::SELF.0),
        0,
    ]
}

impl Hypervisor for SyscallHypervisor {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), BatchRefused> {
        let mut entries_done = 0;
        let args = update_args(updates, &mut entries_done, owner);
        // SAFETY: the hypercall reads `updates` and writes `entries_done`. The caller of `new` has
        // promised that the kernel may change these entries.
        let result = unsafe { self.call(number::MMU_UPDATE, args) };
        batch_result(result, entries_done)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), BatchRefused> {
        self.flushes += ops.iter().filter(|op| op.is_flush()).count() as u64;
        let mut entries_done = 0;
        let args = ext_args(ops, &mut entries_done);
        // SAFETY: the hypercall reads `ops` and writes `entries_done`. The caller of `new` has promised
        // that the kernel may change these tables.
        let result = unsafe { self.call(number::MMUEXT_OP, args) };
        batch_result(result, entries_done)
    }

    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>) {
        let (mut done_ops, mut done_updates) = (0, 0);
        let entry =
            |op, [a, b, c, d, e]: [u64; 5]| Multicall { op, result: 0, args: [a, b, c, d, e, 0] };
        let mut calls = [
            entry(number::MMUEXT_OP, ext_args(ops, &mut done_ops)),
            entry(number::MMU_UPDATE, update_args(updates, &mut done_updates, DomId::SELF)),
        ];
        let pointer = calls.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the hypercall reads `ops` and `updates`, and writes `done_ops`, `done_updates`
        // and `calls`. The caller of `new` has promised that the kernel may change these entries.
        let multicall = unsafe { self.call(number::MULTICALL, [pointer, 2, 0, 0, 0]) };
        if let Err(errno) = multicall {
            let none_done = Err(BatchRefused { entries_done: 0, errno });
            return (none_done, none_done);
        }
        let [ext, update] = calls.map(|call| Errno::of(call.result));
        (batch_result(ext, done_ops), batch_result(update, done_updates))
    }
}
