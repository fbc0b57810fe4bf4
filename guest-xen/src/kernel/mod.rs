//! The kernel, from Xen's jump to the verdict of the run.

mod case;
mod console;
mod entry;
mod figures;
mod foreign_memory;
mod hypercall;
mod linux;
mod marks;
mod memory;
mod model_check;
mod race;
mod space;
mod sparse_tables;
mod start_info;
mod stop;
mod subject;
mod timed_hypercalls;
mod trap;
mod two_roots;
mod writer_cpu;

use console::Console;
use hotmem_guest::report::Report;
use hotmem_guest::to_usize;
use hotmem_xen::features;
use hypercall::hypercall;
use memory::Memory;
use space::Kernel;
use start_info::StartInfo;
use stop::{give_up, must};

const VM_ASSIST: u64 = 21;
const ENABLE: u64 = 0;
/// `VMASST_TYPE_writable_pagetables`: plain writes to page tables trap and are emulated, which a
/// kernel needs that exchanges entries.
const WRITABLE_PAGETABLES: u64 = 2;

/// The entry in Rust. The first instructions jump here, on a stack of 256 KiB, with the whole image
/// mapped.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(info: u64) -> ! {
    let mut report = Report::begin(Console::new());
    // SAFETY: Xen has put its structure there, and nothing changes it.
    let info: &StartInfo = unsafe { &*core::ptr::with_exposed_provenance(to_usize(info)) };
    // SAFETY: the argument is the number of a flag.
    must("vm_assist", unsafe { hypercall(VM_ASSIST, [ENABLE, WRITABLE_PAGETABLES, 0, 0, 0]) });
    trap::load();
    // SAFETY: this is the structure that Xen passed to the kernel.
    let memory = unsafe { Memory::new(info) };
    // SAFETY: this is the only call.
    let kernel = unsafe { Kernel::new(memory) };
    if must("features", kernel.xen.features()) & features::MMU_PT_UPDATE_PRESERVE_AD == 0 {
        give_up("this Xen has no MMU_PT_UPDATE_PRESERVE_AD");
    }
    must("the other CPU", writer_cpu::start(memory.root));
    report.ok("boot, two CPUs");
    let pages =
        to_usize(info.number("pages", 4096)).clamp(1, writer_cpu::PAGES).next_multiple_of(512);
    let batch = to_usize(info.number("batch", 512)).clamp(1, 512);
    let runs = info.number("runs", 1);
    let mode = info.value("mode").unwrap_or("test");
    match mode {
        "test" => {
            model_check::run(kernel, &mut report);
            two_roots::run(kernel, &mut report);
            race::run(kernel, &mut report, info.number("writes", 100_000));
            case::run(kernel, &mut report, pages, batch, 1);
            case::run_exit(kernel, &mut report, pages, 1);
            sparse_tables::run(kernel, &mut report, 1);
            foreign_memory::run(kernel, &mut report, pages, batch, 1);
        }
        "race" => race::run(kernel, &mut report, info.number("writes", 1_000_000)),
        "bench" => {
            case::run(kernel, &mut report, pages, batch, runs);
            foreign_memory::run(kernel, &mut report, pages, batch, runs);
        }
        "batches" => case::run(kernel, &mut report, pages, batch, runs),
        "tables" => {
            case::run_exit(kernel, &mut report, pages, runs);
            sparse_tables::run(kernel, &mut report, runs);
        }
        "marks" => marks::run(kernel, &mut report),
        "foreign" => foreign_memory::run(kernel, &mut report, pages, batch, runs),
        _ => report.not_ok(format_args!("unknown mode {mode}")),
    }
    report.finish();
    console::shut_down()
}
