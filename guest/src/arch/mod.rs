//! What the kernel needs from the processor's architecture. The rest of the kernel names no
//! architecture: it uses the items below, which each architecture provides.
//!
//! | item | contents |
//! |---|---|
//! | `image` | where the image, the boot mapping and the loader's memory lie; physical addresses of the image |
//! | `LAYOUT` | the layout of the address space |
//! | `paging` | the boot code's page tables, and what the processor's tables allow |
//! | `FlushAll`, `flush_all`, `answer_flush` | TLB flushes of all CPUs |
//! | `start_first_cpu`, `start_others`, `cpu_number`, `stack_layout` | CPUs |
//! | `Stopwatch`, `Clock`, `tick_at` | time |
//! | `open_interrupts`, `interrupts` | interrupts of timers and of devices, and halting until one arrives |
//! | `Message`, `MESSAGES`, `MessageTarget` | message-signalled interrupts |
//! | `mmio` | accesses to registers of devices in memory, in order with accesses to RAM |
//! | `IoPort` | registers of devices outside of memory |
//! | `Console`, `exit` | the report's way out, and the machine's end |
//! | `NextKernel`, `handle_nmis`, `take_bad_frame` | abilities that an architecture may lack |
//!
//! `flat_image` has what the architectures share that are booted as Linux is, by a device tree.
//!
//! The boot code of an architecture calls `kernel_main`. What the kernel does at an exception comes as
//! [`Handlers`], so that an architecture uses nothing of the kernel above it.
//!
//! An architecture without an ability has a type without values or returns an error in its place, so
//! that a run that asks for the ability ends and says why.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod flat_image;
mod handlers;
mod overflow;
#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as this;
#[cfg(target_arch = "riscv64")]
use riscv64 as this;
#[cfg(target_arch = "x86_64")]
use x86_64 as this;

pub(crate) use handlers::Handlers;
pub(crate) use overflow::plan_overflow;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
use this::NAME;
pub(crate) use this::{
    Clock, Console, FlushAll, IoPort, LAYOUT, MESSAGES, Message, MessageTarget, NextKernel,
    Stopwatch, answer_flush, cpu_number, exit, flush_all, handle_nmis, image, interrupts, mmio,
    open_interrupts, paging, stack_layout, start_first_cpu, start_others, take_bad_frame, tick_at,
};
