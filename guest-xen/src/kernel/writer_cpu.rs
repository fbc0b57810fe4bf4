//! The other CPU, which writes to mapped pages while the first CPU unmaps them.

use super::entry::VIRT_BASE;
use super::hypercall::hypercall;
use super::trap::{self, KERNEL_CODE, KERNEL_STACK, TrapInfo};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use hotmem_addr::Pfn;
use hotmem_guest::to_usize;
use hotmem_xen::Errno;

unsafe extern "C" {
    /// The end of the other CPU's stack: see `entry.rs`.
    static other_stack_top: u8;
}

const VCPU_OP: u64 = 24;
const INITIALISE: u64 = 0;
const UP: u64 = 1;
const OTHER_CPU: u64 = 1;
/// `VGCF_in_kernel`. `VGCF_online` is not set, because `VCPUOP_up` would not start a CPU that is
/// online already.
const IN_KERNEL: u64 = 1 << 2;

/// The largest number of pages that are written to.
pub(crate) const PAGES: usize = 16 << 10;

/// `struct vcpu_guest_context`
#[repr(C, align(16))]
struct Context {
    fpu: [u8; 512],
    flags: u64,
    /// The 15 registers from r15 to rdi.
    registers: [u64; 15],
    error_code: u32,
    vector: u32,
    rip: u64,
    code: u64,
    rflags: u64,
    rsp: u64,
    stack: u64,
    segments: [u64; 4],
    traps: [TrapInfo; 256],
    ldt: [u64; 2],
    gdt: [u64; 17],
    kernel_stack: u64,
    kernel_sp: u64,
    control: [u64; 8],
    debug: [u64; 8],
    callbacks: [u64; 3],
    vm_assist: u64,
    bases: [u64; 3],
}

const IDLE: u32 = 0;
const WRITING: u32 = 1;
const STOPPING: u32 = 2;

/// The state of the other CPU. The first CPU sets WRITING and the other sets IDLE, each with
/// Release after its earlier writes; both read it with Acquire.
static STATE: AtomicU32 = AtomicU32::new(IDLE);
static STARTED: AtomicBool = AtomicBool::new(false);
/// The address and the number of the pages.
static BASE: AtomicU64 = AtomicU64::new(0);
static PAGE_COUNT: AtomicU64 = AtomicU64::new(0);
/// Whether the other CPU has written to each page.
static PAGES_WRITTEN: [AtomicU8; PAGES] = [const { AtomicU8::new(0) }; PAGES];
static WRITES: AtomicU64 = AtomicU64::new(0);

/// Starts the other CPU on this root.
pub(crate) fn start(root: Pfn) -> Result<(), Errno> {
    let rip = other_main as *const () as u64;
    let rsp = (&raw const other_stack_top).expose_provenance() as u64;
    let mut traps = [TrapInfo::default(); 256];
    traps[14] = TrapInfo::page_fault();
    let mut control = [0; 8];
    // Protected mode with write protection and paging; PAE; the root.
    (control[0], control[4], control[3]) = (0x8001_0001, 0x20, root.phys_addr());
    let context = Context {
        fpu: [0; 512],
        flags: IN_KERNEL,
        registers: [0; 15],
        error_code: 0,
        vector: 0,
        rip,
        code: u64::from(KERNEL_CODE),
        rflags: 0x2,
        rsp: rsp - 8,
        stack: u64::from(KERNEL_STACK),
        segments: [0; 4],
        traps,
        ldt: [0; 2],
        gdt: [0; 17],
        kernel_stack: u64::from(KERNEL_STACK),
        kernel_sp: rsp - 8,
        control,
        debug: [0; 8],
        callbacks: [0; 3],
        vm_assist: 0,
        bases: [0; 3],
    };
    debug_assert!(rip > VIRT_BASE);
    let pointer = (&raw const context).expose_provenance() as u64;
    // SAFETY: Xen reads the context, whose CPU runs `other_main` on a stack of its own.
    unsafe { hypercall(VCPU_OP, [INITIALISE, OTHER_CPU, pointer, 0, 0])? };
    // SAFETY: no argument.
    unsafe { hypercall(VCPU_OP, [UP, OTHER_CPU, 0, 0, 0])? };
    while !STARTED.load(Ordering::Acquire) {
        core::hint::spin_loop();
    }
    Ok(())
}

/// Makes the other CPU write to `count` pages from `base` on, repeatedly, until [`stop`].
pub(crate) fn begin(base: u64, count: usize) {
    PAGES_WRITTEN.iter().for_each(|page| page.store(0, Ordering::Relaxed));
    BASE.store(base, Ordering::Relaxed);
    PAGE_COUNT.store(count.min(PAGES) as u64, Ordering::Relaxed);
    STATE.store(WRITING, Ordering::Release);
}

/// Returns the total number of successful writes.
pub(crate) fn writes() -> u64 {
    WRITES.load(Ordering::Relaxed)
}

/// Stops the other CPU; [`wrote`] is then final.
pub(crate) fn stop() {
    STATE.store(STOPPING, Ordering::Release);
    while STATE.load(Ordering::Acquire) != IDLE {
        core::hint::spin_loop();
    }
}

/// Returns whether the other CPU has written to this page.
pub(crate) fn wrote(page: usize) -> bool {
    PAGES_WRITTEN.get(page).is_some_and(|page| page.load(Ordering::Relaxed) != 0)
}

/// The entry of the other CPU.
extern "C" fn other_main() -> ! {
    STARTED.store(true, Ordering::Release);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    loop {
        match STATE.load(Ordering::Acquire) {
            WRITING => {
                let (base, count) =
                    (BASE.load(Ordering::Relaxed), PAGE_COUNT.load(Ordering::Relaxed));
                for _ in 0..64 {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let page = (random >> 33) % count;
                    // SAFETY: the first CPU maps pages there whose contents are unused.
                    if unsafe { trap::store(base + page * 4096, random) } {
                        WRITES.fetch_add(1, Ordering::Relaxed);
                        if let Some(wrote) = PAGES_WRITTEN.get(to_usize(page)) {
                            wrote.store(1, Ordering::Relaxed);
                        }
                    }
                }
            }
            STOPPING => STATE.store(IDLE, Ordering::Release),
            _ => core::hint::spin_loop(),
        }
    }
}

const _: () = assert!(size_of::<Context>() == 5168);
