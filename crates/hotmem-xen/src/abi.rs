//! Definitions from Xen's public headers `xen.h`, `errno.h` and `features.h`.

use core::fmt;
use hotmem_addr::Pfn;
use hotmem_pgtable::x86_64::Entry;
use hotmem_pgtable::{EntryAddr, Level};

/// Hypercall numbers, `__HYPERVISOR_*`.
pub(crate) mod number {
    pub(crate) const MMU_UPDATE: u64 = 1;
    pub(crate) const MULTICALL: u64 = 13;
    pub(crate) const MMUEXT_OP: u64 = 26;
    pub(crate) const MEMORY_OP: u64 = 12;
    pub(crate) const XEN_VERSION: u64 = 17;
    pub(crate) const DOMCTL: u64 = 36;
}

/// Bits of the first feature word, `XENFEAT_*`.
pub mod features {
    /// Xen supports `MMU_PT_UPDATE_PRESERVE_AD`.
    pub const MMU_PT_UPDATE_PRESERVE_AD: u32 = 1 << 5;
}

/// A domain, as `domid_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct DomId(pub u16);

/// A Xen error, as a positive number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub u16);

/// The command of an update, encoded in the low bits of [`MmuUpdate`]'s address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Command {
    /// `MMU_NORMAL_PT_UPDATE`: replaces the entry by the value.
    Normal = 0,
    /// `MMU_PT_UPDATE_PRESERVE_AD`: atomically replaces all bits of the entry except Accessed and
    /// Dirty.
    PreserveAd = 2,
}

/// `struct mmu_update`: a change of one entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct MmuUpdate {
    ptr: u64,
    val: u64,
}

/// `struct mmuext_op`: an operation on a whole table or on the TLBs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct MmuExtOp {
    cmd: u32,
    arg1: u64,
    arg2: u64,
}

/// `struct multicall_entry`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Multicall {
    pub(crate) op: u64,
    pub(crate) result: i64,
    pub(crate) args: [u64; 6],
}

impl DomId {
    /// `DOMID_SELF`: the caller.
    pub const SELF: DomId = DomId(0x7ff0);
}

impl MmuUpdate {
    /// No update.
    pub const NONE: MmuUpdate = MmuUpdate { ptr: 0, val: 0 };

    /// Makes an update of the entry at this machine address.
    #[must_use]
    pub const fn new(addr: EntryAddr, command: Command, value: Entry) -> MmuUpdate {
        MmuUpdate { ptr: addr.phys_addr() | command as u64, val: value.bits() }
    }

    /// Returns the entry's address and the command's number.
    #[must_use]
    pub const fn target(&self) -> (u64, u64) {
        (self.ptr & !3, self.ptr & 3)
    }

    /// Returns the new entry.
    #[must_use]
    pub const fn value(&self) -> Entry {
        Entry::from_bits(self.val)
    }
}

impl MmuExtOp {
    /// No operation.
    pub const NONE: MmuExtOp = MmuExtOp { cmd: 0, arg1: 0, arg2: 0 };

    /// `MMUEXT_PIN_L1_TABLE` to `MMUEXT_PIN_L4_TABLE`: makes the frame a table until it is
    /// unpinned. Returns `None` for level 5, which PV guests do not have.
    #[must_use]
    pub const fn pin(level: Level, table: Pfn) -> Option<MmuExtOp> {
        let cmd = match level {
            Level::L1 => 0,
            Level::L2 => 1,
            Level::L3 => 2,
            Level::L4 => 3,
            Level::L5 => return None,
        };
        Some(MmuExtOp { cmd, arg1: table.number(), arg2: 0 })
    }

    /// `MMUEXT_UNPIN_TABLE`: unpins a table that was [pinned](Self::pin).
    #[must_use]
    pub const fn unpin(table: Pfn) -> MmuExtOp {
        MmuExtOp { cmd: 4, arg1: table.number(), arg2: 0 }
    }

    /// `MMUEXT_NEW_BASEPTR`: sets this CPU's root.
    #[must_use]
    pub const fn new_root(root: Pfn) -> MmuExtOp {
        MmuExtOp { cmd: 5, arg1: root.number(), arg2: 0 }
    }

    /// `MMUEXT_NEW_USER_BASEPTR`: sets this CPU's root for user mode.
    #[must_use]
    pub const fn new_user_root(root: Pfn) -> MmuExtOp {
        MmuExtOp { cmd: 15, arg1: root.number(), arg2: 0 }
    }

    /// `MMUEXT_TLB_FLUSH_ALL`: flushes the TLBs of all CPUs of the caller's domain.
    #[must_use]
    pub const fn flush_all() -> MmuExtOp {
        MmuExtOp { cmd: 10, arg1: 0, arg2: 0 }
    }

    /// `MMUEXT_INVLPG_ALL`: flushes this address on all CPUs of the caller's domain.
    #[must_use]
    pub const fn flush_page(virt: u64) -> MmuExtOp {
        MmuExtOp { cmd: 11, arg1: virt, arg2: 0 }
    }

    /// Returns whether the operation flushes TLBs.
    #[must_use]
    pub const fn is_flush(&self) -> bool {
        matches!(self.cmd, 6..=11)
    }

    /// Returns the command's number and its argument.
    #[must_use]
    pub const fn parts(&self) -> (u32, u64) {
        (self.cmd, self.arg1)
    }
}

impl Errno {
    /// Operation not permitted. Xen returns it if the frame belongs to another domain.
    pub const EPERM: Errno = Errno(1);
    /// Busy. Xen returns it if the frame is used as another type, for example as a table, which
    /// must not be mapped writable.
    pub const EBUSY: Errno = Errno(16);
    /// Invalid argument.
    pub const EINVAL: Errno = Errno(22);

    /// Returns the value of a hypercall's result.
    ///
    /// # Errors
    /// The error number, if the result is negative.
    pub fn of(result: i64) -> Result<u64, Errno> {
        match u64::try_from(result) {
            Ok(value) => Ok(value),
            Err(_) => Err(Errno(u16::try_from(result.unsigned_abs()).unwrap_or(u16::MAX))),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            1 => "EPERM",
            3 => "ESRCH",
            12 => "ENOMEM",
            13 => "EACCES",
            14 => "EFAULT",
            16 => "EBUSY",
            22 => "EINVAL",
            38 => "ENOSYS",
            number => return write!(f, "error {number}"),
        };
        f.write_str(name)
    }
}

const _: () = assert!(size_of::<MmuUpdate>() == 16);
const _: () = assert!(size_of::<MmuExtOp>() == 24);
const _: () = assert!(size_of::<Multicall>() == 64);
