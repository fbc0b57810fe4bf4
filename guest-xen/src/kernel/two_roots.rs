//! Tests address spaces with two roots under Xen itself: they are not torn down while a CPU uses
//! either root, and unhooking at the root changes both roots.

use super::case::entry;
use super::console::Console;
use super::space::{BASE, CONFIG, Kernel, UnmappedCounts};
use hotmem_addr::Pfn;
use hotmem_guest::report::Report;
use hotmem_guest::to_usize;
use hotmem_pgtable::x86_64::{Space, StopReason};
use hotmem_pgtable::{EntryAddr, Unmap, VirtRange};
use hotmem_xen::{Config, Errno, Fault, HypercallPurpose, MmuExtOp};

const PAGES: usize = 2 * 512;
const ALL_PAGES: UnmappedCounts = UnmappedCounts { pages: PAGES as u64, dirty: PAGES as u64 / 2 };
const PINNED_CONFIG: Config = Config { pins_l1: true, ..CONFIG };

pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>) {
    let kernel_root = kernel.memory.root;
    exit_in_use(kernel, report, "kernel", |space| {
        (MmuExtOp::new_root(space.root), MmuExtOp::new_root(kernel_root))
    });
    exit_in_use(kernel, report, "user", |space| {
        let user = space.user_root.unwrap_or_default();
        (MmuExtOp::new_user_root(user), MmuExtOp::new_user_root(Pfn::ZERO))
    });
    unhook(kernel, report);
}

/// Checks that an address space is not torn down and loses no entry while a CPU uses it, and that
/// it is torn down afterwards.
fn exit_in_use(
    kernel: &mut Kernel,
    report: &mut Report<Console>,
    root_name: &str,
    switch: impl Fn(Space) -> (MmuExtOp, MmuExtOp),
) {
    let before = kernel.page_owner.tables_left();
    let space = kernel.build(true, true, PAGES, entry);
    let (enter, leave) = switch(space);
    kernel.page_owner.unmapped_counts = UnmappedCounts::default();
    kernel.ext(enter);
    let (tables, page_owner) = kernel.tables(space, PINNED_CONFIG);
    let refused = tables.teardown(page_owner).map_err(|stopped| (stopped.address, stopped.reason));
    kernel.ext(leave);
    let unmapped_counts = kernel.page_owner.unmapped_counts;
    let (tables, page_owner) = kernel.tables(space, PINNED_CONFIG);
    let result = tables.teardown(page_owner);
    let busy = Fault::Refused { purpose: HypercallPurpose::Remap, errno: Errno::EBUSY };
    let tables_left = kernel.page_owner.tables_left();
    if refused == Err((0, StopReason::Mmu(busy)))
        && (unmapped_counts, kernel.page_owner.unmapped_counts, tables_left)
            == (UnmappedCounts::default(), ALL_PAGES, before)
    {
        report.ok(format_args!(
            "an address space whose {root_name} root is in use is torn down afterwards"
        ));
    } else {
        report.not_ok(format_args!(
            "an address space whose {root_name} root is in use: {refused:?}, {unmapped_counts:?}, {result:?}, \
             {tables_left} tables of {before}"
        ));
    }
}

/// A table that is unhooked at the root while a CPU has the user's root loaded is in neither root.
fn unhook(kernel: &mut Kernel, report: &mut Report<Console>) {
    let before = kernel.page_owner.tables_left();
    let space = kernel.build(true, true, PAGES, entry);
    let user = space.user_root.unwrap_or_default();
    kernel.ext(MmuExtOp::new_user_root(user));
    kernel.page_owner.unmapped_counts = UnmappedCounts::default();
    let range = super::stop::must("a range", VirtRange::new(BASE, hotmem_addr::Bytes::gib(512)));
    let (mut tables, page_owner) = kernel.tables(space, PINNED_CONFIG);
    let result = tables.unmap_range(range, Unmap::default(), page_owner);
    let index = to_usize(BASE >> 39);
    let root_entries = [space.root, user].map(|root| kernel.entry(EntryAddr::new(root, index)));
    kernel.ext(MmuExtOp::new_user_root(Pfn::ZERO));
    let unmapped_counts = kernel.page_owner.unmapped_counts;
    let (tables, page_owner) = kernel.tables(space, PINNED_CONFIG);
    let teardown_result = tables.teardown(page_owner);
    let freed = kernel.page_owner.tables_left() == before;
    let all_received =
        result.is_ok() && teardown_result.is_ok() && unmapped_counts == ALL_PAGES && freed;
    if all_received && root_entries.iter().all(|entry| entry.is_empty()) {
        report.ok("a table that is unhooked at the root is in neither root");
    } else {
        report.not_ok(format_args!(
            "unhooked at the root: {result:?} {root_entries:?} {unmapped_counts:?} {teardown_result:?}"
        ));
    }
}
