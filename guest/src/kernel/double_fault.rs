//! Gives double faults a stack of their own. If a stack overflows, the page fault cannot be handled
//! on it, and the CPU reports a double fault.

use super::limits::MAX_CPUS;
use spin::Once;
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

/// The number of the stack in a gate's options. 0 means the current stack.
pub(super) const STACK_NUMBER: u16 = 1;

/// The stack. All CPUs share it, because a double fault ends the run.
#[repr(align(16))]
struct Stack(#[expect(dead_code, reason = "only the CPU uses the bytes")] [u8; 8 << 10]);

/// Loads a GDT and a task state segment, which names the stack, on the CPU with this number.
pub(super) fn load(cpu: usize) {
    static mut STACK: Stack = Stack([0; 8 << 10]);
    static TSS: Once<TaskStateSegment> = Once::new();
    // Each CPU has its own GDT, because the CPU marks the entry of a loaded segment as busy.
    static GDTS: [Once<GlobalDescriptorTable>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];

    let tss = TSS.call_once(|| {
        let mut tss = TaskStateSegment::new();
        tss.interrupt_stack_table[usize::from(STACK_NUMBER) - 1] =
            VirtAddr::from_ptr((&raw const STACK).wrapping_add(1));
        tss
    });
    let Some(gdt) = GDTS.get(cpu) else { return };
    let gdt = gdt.call_once(|| {
        let mut gdt = GlobalDescriptorTable::new();
        gdt.append(Descriptor::kernel_code_segment());
        gdt.append(Descriptor::tss_segment(tss));
        gdt
    });
    gdt.load();
    // SAFETY: the second entry is the descriptor of `TSS`, which this CPU alone loads, and once.
    unsafe { load_tss(TSS_SELECTOR) }
}

/// The entry after that of the code segment.
const TSS_SELECTOR: SegmentSelector = SegmentSelector::new(2, PrivilegeLevel::Ring0);

/// Calls itself until the stack overflows, for a test of the guard page.
#[inline(never)]
pub(super) fn overflow_stack(depth: u64) -> u64 {
    let words = core::hint::black_box([depth; 32]);
    if depth == u64::MAX { 0 } else { overflow_stack(depth + 1) + words[0] }
}
