//! Prints exceptions and ends the machine, which without handlers resets without a message.

use crate::end_by_exception;
use core::arch::naked_asm;
use spin::{Mutex, MutexGuard};
use x86_64::VirtAddr;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::Cr2;
use x86_64::registers::segmentation::{CS, Segment};
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::idt::{Entry, InterruptDescriptorTable, InterruptStackFrame};
use x86_64::structures::tss::TaskStateSegment;

/// The stack of the handlers, as the kernel's stack may have overflowed.
#[repr(align(16))]
struct Stack([u8; 4096]);

static STACK: Mutex<Stack> = Mutex::new(Stack([0; 4096]));
static SEGMENT: Mutex<TaskStateSegment> = Mutex::new(TaskStateSegment::new());
static GDT: Mutex<GlobalDescriptorTable> = Mutex::new(GlobalDescriptorTable::new());
static IDT: Mutex<Option<InterruptDescriptorTable>> = Mutex::new(None);

/// Makes exceptions call the handlers below. May be called once.
pub(crate) fn handle() {
    let stack = MutexGuard::leak(STACK.lock()).0.as_ptr_range();
    let segment = MutexGuard::leak(SEGMENT.lock());
    segment.interrupt_stack_table[0] = VirtAddr::from_ptr(stack.end);
    let gdt = MutexGuard::leak(GDT.lock());
    let code = gdt.append(Descriptor::kernel_code_segment());
    let task = gdt.append(Descriptor::tss_segment(segment));
    gdt.load();
    // SAFETY: the selectors are those of entries that this function has made.
    unsafe {
        CS::set_reg(code);
        load_tss(task);
    }
    let idt = MutexGuard::leak(IDT.lock()).insert(InterruptDescriptorTable::new());
    set(&mut idt.divide_error, divide_error);
    set(&mut idt.invalid_opcode, invalid_instruction);
    set(&mut idt.double_fault, double_fault);
    set(&mut idt.general_protection_fault, general_protection_fault);
    set(&mut idt.page_fault, page_fault);
    idt.load();
}

/// Makes an entry of the table point to a handler, which runs on the stack of the handlers.
fn set<F>(entry: &mut Entry<F>, handler: extern "C" fn() -> !) {
    // SAFETY: the handler expects what the CPU pushes for this exception, and never returns.
    let options = unsafe { entry.set_handler_addr(VirtAddr::from_ptr(handler as *const ())) };
    // SAFETY: stack 0 is set, and only one exception uses it, because that ends the machine.
    unsafe { options.set_stack_index(0) };
}

/// Defines the handler of an exception, for which the CPU pushes a frame and these bytes of error code.
macro_rules! handler {
    ($handler:ident, $name:literal, error_code: $bytes:literal) => {
        #[unsafe(naked)]
        extern "C" fn $handler() -> ! {
            extern "C" fn print_and_end(frame: &InterruptStackFrame) -> ! {
                end_by_exception($name, frame.instruction_pointer.as_u64(), Cr2::read_raw())
            }
            naked_asm!(
                "lea rdi, [rsp + {}]", "and rsp, -16", "call {}", const $bytes, sym print_and_end
            )
        }
    };
}

handler!(divide_error, "divide error", error_code: 0);
handler!(invalid_instruction, "invalid instruction", error_code: 0);
handler!(double_fault, "double fault", error_code: 8);
handler!(general_protection_fault, "general protection fault", error_code: 8);
handler!(page_fault, "page fault", error_code: 8);
