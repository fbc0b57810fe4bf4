//! Starts another kernel without a reset of the machine, as Linux's kexec does. Devices keep their
//! state.
//!
//! The loader passes the next kernel's image as the first module. The next kernel's command line is
//! the text after ` -- ` in this kernel's command line. Without a module there is no next kernel: a
//! loader may add the arguments of an init program after ` -- `. The next kernel gets the same memory map
//! and modules as this kernel.

use super::layout::LAYOUT;
use super::paging;
use super::smp::TRAMPOLINE;
use core::arch::{asm, global_asm};
use core::fmt;
use hotmem::{Pfn, PfnRange};
use hotmem_guest::elf::{Image, ImageError, Segment};
use hotmem_guest::layout::frames_touched_by;
use hotmem_guest::loader_table::TableError;
use hotmem_guest::memory_map::MemoryMapEntry;
use hotmem_guest::pvh::Handover;
use hotmem_guest::signal::other_cpus;
use hotmem_guest::to_usize;

/// The address of the tables that this kernel passes to the next kernel, in memory that neither
/// kernel uses otherwise. The list of [`Part`]s is at the start.
const TABLES: u64 = 0x9000;
const TABLES_END: u64 = 0x1_0000;
const MAX_PARTS: usize = 16;
const START_INFO: u64 = TABLES + (MAX_PARTS * size_of::<Part>()) as u64;

/// A kernel that is ready to be started, because its tables are written.
pub(crate) struct NextKernel {
    entry: u32,
    part_count: usize,
}

/// A part of an image to copy, in a format for 32-bit code.
#[repr(C)]
struct Part {
    source: u32,
    destination: u32,
    len: u32,
    /// The number of zeros to write after the copied bytes.
    zeros: u32,
}

/// The reason why the next kernel cannot be started.
pub(crate) enum NextKernelError {
    /// The first module is not an image.
    Image(ImageError),
    /// The destination of a segment is not free RAM below 4 GiB.
    Destination(Segment),
    /// There are more parts than [`MAX_PARTS`].
    TooManyParts,
    /// The tables for the next kernel are too large.
    Tables(TableError),
    /// Other CPUs run this kernel.
    OtherCpusRun,
}

impl NextKernel {
    /// Prepares the next kernel. All RAM must be mapped, and the loader's tables must have been
    /// read.
    pub(crate) fn prepare(
        module: &MemoryMapEntry,
        ram: impl Iterator<Item = PfnRange> + Clone,
        handover: Handover<'_>,
    ) -> Result<Self, NextKernelError> {
        // SAFETY: modules lie in RAM, all RAM is mapped, and nothing writes to modules.
        let bytes =
            unsafe { core::slice::from_raw_parts(LAYOUT.virt(module.addr), to_usize(module.size)) };
        let image = Image::read(bytes).map_err(NextKernelError::Image)?;
        let mut parts = 0;
        for segment in image.segments() {
            let part = Part::new(module.addr, segment, ram.clone(), handover.modules);
            let part = part.ok_or(NextKernelError::Destination(segment))?;
            if parts == MAX_PARTS {
                return Err(NextKernelError::TooManyParts);
            }
            // SAFETY: the entry lies between `TABLES` and `START_INFO`, in RAM that this kernel
            // keeps out of use.
            unsafe { LAYOUT.virt(TABLES).cast::<Part>().add(parts).write(part) };
            parts += 1;
        }
        // SAFETY: the memory from `START_INFO` to `TABLES_END` is RAM that this kernel keeps out of
        // use.
        let buffer = unsafe {
            core::slice::from_raw_parts_mut(
                LAYOUT.virt(START_INFO),
                to_usize(TABLES_END - START_INFO),
            )
        };
        handover.write(START_INFO, buffer).map_err(NextKernelError::Tables)?;
        Ok(NextKernel { entry: image.entry(), part_count: parts })
    }

    /// Ends this kernel and starts the next one. No device may write to memory any more. Returns
    /// only if other CPUs run.
    pub(crate) fn start(self) -> NextKernelError {
        if other_cpus() > 0 {
            return NextKernelError::OtherCpusRun;
        }
        let (start, end) = (&raw const next_start, &raw const next_end);
        // SAFETY: the page at `TRAMPOLINE` is RAM that this kernel keeps out of use. The code is
        // shorter than a page.
        unsafe {
            LAYOUT.virt(TRAMPOLINE).copy_from_nonoverlapping(start, end.addr() - start.addr())
        };
        paging::restore_identity_map();
        // SAFETY: the copied code is linked for the address `TRAMPOLINE`, and is mapped there.
        // `Part::new` has checked the parts that the code copies, and no other code of this kernel
        // runs any more.
        unsafe {
            asm!(
                "jmp {start}",
                start = in(reg) TRAMPOLINE,
                in("edi") u32::try_from(TABLES).unwrap_or(0),
                in("ecx") u32::try_from(self.part_count).unwrap_or(0),
                in("esi") u32::try_from(START_INFO).unwrap_or(0),
                in("edx") self.entry,
                options(noreturn)
            )
        }
    }
}

impl Part {
    /// Makes the part that copies `segment` of the image at `image_start`. Returns `None` if the
    /// segment's destination is not free RAM.
    fn new(
        image_start: u64,
        segment: Segment,
        mut ram: impl Iterator<Item = PfnRange>,
        modules: &[MemoryMapEntry],
    ) -> Option<Self> {
        let Segment { offset, file_len, phys_addr, len } = segment;
        let frames = frames_touched_by(phys_addr, len)?;
        let low = PfnRange::new(Pfn::ZERO, Pfn::containing(TABLES_END)?)?;
        let modules = modules.iter().map(|module| frames_touched_by(module.addr, module.size));
        let is_free =
            !frames.overlaps(low) && modules.flatten().all(|module| !frames.overlaps(module));
        if !is_free || !ram.any(|ram| ram.covers(frames)) {
            return None;
        }
        // The 32-bit code reaches only memory below 4 GiB.
        let end = u32::try_from(phys_addr.checked_add(len)?).ok()?;
        let part_source = image_start.checked_add(offset)?;
        u32::try_from(part_source.checked_add(file_len)?).ok()?;
        let file_len = u32::try_from(file_len).ok()?;
        let destination = u32::try_from(phys_addr).ok()?;
        Some(Part {
            source: u32::try_from(part_source).ok()?,
            destination,
            len: file_len,
            zeros: (end - destination).checked_sub(file_len)?,
        })
    }
}

unsafe extern "C" {
    /// The first byte of the code, and the byte after its last.
    static next_start: u8;
    static next_end: u8;
}

// Switches from 64-bit mode to the state that PVH requires: 32-bit code, flat segments, paging off,
// `start_info` in ebx. (Intel SDM volume 3, 10.8.5.4)
global_asm!(
    r#"
    .section .rodata.next_kernel, "a"
    .balign 16
    .globl next_start
    .globl next_end
    .code64
next_start:
    cli
    cld
    lgdt next_gdt_pointer(%rip)
    movl ${trampoline} + 0x1000, %esp
    pushq $8
    pushq ${trampoline} + next_32 - next_start
    lretq
    .code32
next_32:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    pushl %esi
    pushl %edx
    pushl %ecx
    movl $0x11, %eax                    # PE, ET
    movl %eax, %cr0
    movl $0xc0000080, %ecx              # EFER
    xorl %eax, %eax
    xorl %edx, %edx
    wrmsr
    movl %eax, %cr4
    movl %edi, %ebx
    popl %ebp
1:  testl %ebp, %ebp
    jz 2f
    movl (%ebx), %esi
    movl 4(%ebx), %edi
    movl 8(%ebx), %ecx
    rep movsb
    movl 12(%ebx), %ecx
    xorl %eax, %eax
    rep stosb
    addl $16, %ebx
    decl %ebp
    jmp 1b
2:  popl %edx
    popl %ebx
    jmpl *%edx
    .balign 8
next_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff            # 32-bit code
    .quad 0x00cf93000000ffff            # data
next_gdt_pointer:
    .word next_gdt_pointer - next_gdt - 1
    .quad next_gdt - next_start + {trampoline}
next_end:
    .code64
    "#,
    trampoline = const TRAMPOLINE,
    options(att_syntax)
);

impl fmt::Display for NextKernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NextKernelError::Image(error) => error.fmt(f),
            NextKernelError::Destination(Segment { phys_addr, len, .. }) => {
                write!(f, "{len:#x} bytes at {phys_addr:#x} are not free RAM below 4 GiB")
            }
            NextKernelError::TooManyParts => write!(f, "the image has more than {MAX_PARTS} parts"),
            NextKernelError::Tables(error) => error.fmt(f),
            NextKernelError::OtherCpusRun => f.write_str("other CPUs run this kernel"),
        }
    }
}
