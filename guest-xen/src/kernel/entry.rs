//! The first instructions, and the ELF notes by which Xen finds them: `elfnote.h`.

use core::arch::global_asm;

/// The difference between the kernel's virtual and pseudo-physical addresses; see `link.ld`. Xen
/// maps the domain's frames from here on, in the order of `mfn_list`.
pub(crate) const VIRT_BASE: u64 = 0xffff_ffff_8000_0000;

const STACK_BYTES: u64 = 256 << 10;

// Notes: GUEST_OS, GUEST_VERSION, XEN_VERSION, VIRT_BASE, ENTRY, PAE_MODE, LOADER, FEATURES. With
// SUPPORTED_FEATURES Xen would require the feature "dom0".
global_asm!(
    r#"
    .section .note.Xen, "a", @note
    .macro xen_note type:req
    .balign 4
    .long 4, 2f - 1f, \type
    .asciz "Xen"
    .endm
    xen_note 6
1:  .asciz "hotmem"
2:
    xen_note 7
1:  .asciz "0.1"
2:
    xen_note 5
1:  .asciz "xen-3.0"
2:
    xen_note 3
1:  .quad {base}
2:
    xen_note 1
1:  .quad xen_start
2:
    xen_note 9
1:  .asciz "yes"
2:
    xen_note 8
1:  .asciz "generic"
2:
    xen_note 10
1:  .asciz "!writable_page_tables|pae_pgdir_above_4gb"
2:
    .balign 4

    .section .text.entry, "ax"
    .globl xen_start
xen_start:
    cld
    leaq boot_stack_top(%rip), %rsp
    xorl %ebp, %ebp
    movq %rsi, %rdi
    call kernel_main
    ud2

    .section .bss.stacks, "aw", @nobits
    .balign 4096
    .skip {stack}
boot_stack_top:
    .skip {stack}
    .globl other_stack_top
other_stack_top:
    "#,
    base = const VIRT_BASE,
    stack = const STACK_BYTES,
    options(att_syntax)
);
