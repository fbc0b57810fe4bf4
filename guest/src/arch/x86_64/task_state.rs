//! Gives double faults and NMIs stacks of their own. If a stack overflows, the page fault cannot be
//! handled on it, and the CPU reports a double fault. An NMI may arrive however full a stack is.

use super::stack_layout::{self, NMI_STACK_BYTES};
use hotmem_guest::limits::MAX_CPUS;
use hotmem_guest::to_usize;
use spin::Once;
use x86_64::instructions::tables::load_tss;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector};
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

/// The numbers of the stacks in a gate's options. 0 means the current stack.
pub(super) const DOUBLE_FAULT_STACK: u16 = 1;
pub(super) const NMI_STACK: u16 = 2;

const STACK_BYTES: usize = to_usize(NMI_STACK_BYTES);

#[repr(align(16))]
struct Stack(#[expect(dead_code, reason = "only the CPU uses the bytes")] [u8; STACK_BYTES]);

/// Loads a GDT and a task state segment, which names the stacks, on the CPU with this number.
pub(super) fn load(cpu: usize) {
    // All CPUs share this stack, because a double fault ends the run.
    static mut OF_DOUBLE_FAULTS: Stack = Stack([0; STACK_BYTES]);
    static mut OF_FIRST_CPUS_NMIS: Stack = Stack([0; STACK_BYTES]);
    // Each CPU has its own segment and its own GDT, in which the CPU marks the segment as busy.
    static SEGMENTS: [Once<TaskStateSegment>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];
    static GDTS: [Once<GlobalDescriptorTable>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];

    let (Some(segment), Some(gdt)) = (SEGMENTS.get(cpu), GDTS.get(cpu)) else { return };
    let segment = segment.call_once(|| {
        let mut segment = TaskStateSegment::new();
        let mut set = |number: u16, end| {
            segment.interrupt_stack_table[usize::from(number) - 1] = end;
        };
        set(DOUBLE_FAULT_STACK, VirtAddr::from_ptr((&raw const OF_DOUBLE_FAULTS).wrapping_add(1)));
        let of_nmis = if cpu == 0 {
            VirtAddr::from_ptr((&raw const OF_FIRST_CPUS_NMIS).wrapping_add(1))
        } else {
            VirtAddr::new_truncate(stack_layout::nmi_stack_end(cpu))
        };
        set(NMI_STACK, of_nmis);
        segment
    });
    let gdt = gdt.call_once(|| {
        let mut gdt = GlobalDescriptorTable::new();
        gdt.append(Descriptor::kernel_code_segment());
        gdt.append(Descriptor::tss_segment(segment));
        gdt
    });
    gdt.load();
    // SAFETY: the second entry is the descriptor of the CPU's segment, which this CPU alone loads, and
    // once.
    unsafe { load_tss(SEGMENT_SELECTOR) }
}

/// The entry after that of the code segment.
const SEGMENT_SELECTOR: SegmentSelector = SegmentSelector::new(2, PrivilegeLevel::Ring0);
