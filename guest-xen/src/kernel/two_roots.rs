//! Tests address spaces with two roots under Xen itself: they are not torn down while a CPU uses
//! either root, and unhooking at the root changes both roots.

use super::case::entry;
use super::console::Console;
use super::space::{BASE, CONFIG, Kernel, Told};
use hotmem_addr::Pfn;
use hotmem_guest::report::Report;
use hotmem_guest::to_usize;
use hotmem_pgtable::{EntryAddr, Space, Unmap, VirtRange, Why};
use hotmem_xen::{Call, Config, Errno, Fault, MmuExtOp};

const PAGES: usize = 2 * 512;
const ALL: Told = Told { pages: PAGES as u64, dirty: PAGES as u64 / 2 };
const PINS: Config = Config { pins_l1: true, ..CONFIG };

pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>) {
    let kernels = kernel.memory.root;
    exit_in_use(kernel, report, "kernel", |space| {
        (MmuExtOp::new_root(space.root), MmuExtOp::new_root(kernels))
    });
    exit_in_use(kernel, report, "user", |space| {
        let user = space.user_root.unwrap_or_default();
        (MmuExtOp::new_user_root(user), MmuExtOp::new_user_root(Pfn::ZERO))
    });
    unhook(kernel, report);
}

/// An address space that a CPU uses is not torn down and loses nothing. It is torn down once it is
/// unused.
fn exit_in_use(
    kernel: &mut Kernel,
    report: &mut Report<Console>,
    whose: &str,
    switch: impl Fn(Space) -> (MmuExtOp, MmuExtOp),
) {
    let before = kernel.pool.left();
    let space = kernel.build(true, true, PAGES, entry);
    let (enter, leave) = switch(space);
    kernel.pool.told = Told::default();
    kernel.ext(enter);
    let (tables, pool) = kernel.tables(space, PINS);
    let refused = tables.teardown(pool).map_err(|stopped| (stopped.at, stopped.why));
    kernel.ext(leave);
    let told = kernel.pool.told;
    let (tables, pool) = kernel.tables(space, PINS);
    let done = tables.teardown(pool);
    let busy = Fault::Refused { call: Call::Remap, errno: Errno::EBUSY };
    let left = kernel.pool.left();
    if refused == Err((0, Why::Mmu(busy)))
        && (told, kernel.pool.told, left) == (Told::default(), ALL, before)
    {
        report.ok(format_args!(
            "an address space whose {whose} root is in use is torn down afterwards"
        ));
    } else {
        report.not_ok(format_args!(
            "an address space whose {whose} root is in use: {refused:?}, {told:?}, {done:?}, \
             {left} tables of {before}"
        ));
    }
}

/// A table that is unhooked at the root while a CPU has the user's root loaded is in neither root.
fn unhook(kernel: &mut Kernel, report: &mut Report<Console>) {
    let before = kernel.pool.left();
    let space = kernel.build(true, true, PAGES, entry);
    let user = space.user_root.unwrap_or_default();
    kernel.ext(MmuExtOp::new_user_root(user));
    kernel.pool.told = Told::default();
    let range = super::stop::must("a range", VirtRange::new(BASE, hotmem_addr::Bytes::gib(512)));
    let (mut tables, pool) = kernel.tables(space, PINS);
    let done = tables.unmap_range(range, Unmap::default(), pool);
    let index = to_usize(BASE >> 39);
    let left = [space.root, user].map(|root| kernel.entry(EntryAddr::new(root, index)));
    kernel.ext(MmuExtOp::new_user_root(Pfn::ZERO));
    let told = kernel.pool.told;
    let (tables, pool) = kernel.tables(space, PINS);
    let torn = tables.teardown(pool);
    let freed = kernel.pool.left() == before;
    let good = done.is_ok() && torn.is_ok() && told == ALL && freed;
    if good && left.iter().all(|entry| entry.is_empty()) {
        report.ok("a table that is unhooked at the root is in neither root");
    } else {
        report.not_ok(format_args!("unhooked at the root: {done:?} {left:?} {told:?} {torn:?}"));
    }
}
