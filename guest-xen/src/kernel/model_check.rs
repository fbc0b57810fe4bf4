//! Checks that Xen agrees with the model in the host's tests.

use super::console::Console;
use super::space::Kernel;
use hotmem_guest::report::Report;
use hotmem_pgtable::EntryAddr;
use hotmem_pgtable::x86_64::{Entry, Flags};
use hotmem_xen::vectors::{
    Frames, NOT_OWNED, NOT_PINNED, REFUSED_AT_SECOND, VECTORS, refused_second,
};
use hotmem_xen::{BatchRefused, Command, DomId, Hypervisor, MmuExtOp, MmuUpdate};

/// The flags that Xen itself sets in entries.
const XEN_FLAGS: Flags = Flags::GLOBAL.union(Flags::USER);

/// Runs the test vectors on one entry.
pub(crate) fn run(kernel: &mut Kernel, report: &mut Report<Console>) {
    let space = kernel.build(false, false, 512, |_, _| Entry::EMPTY);
    let table = kernel.memory.l1_table(space, super::space::BASE);
    let frames = Frames { same_frame: kernel.page(0), other_frame: kernel.page(1), table };
    let Some(at) = kernel.entries(space, 7..8).next() else { return };
    let without_xen_flags = |entry: Entry| entry.bits() & !XEN_FLAGS.bits();
    let mut agreed = 0;
    for (number, vector) in VECTORS.iter().enumerate() {
        for before in [Entry::EMPTY, vector.before(frames)] {
            let update = MmuUpdate::new(at, Command::Normal, before);
            kernel.update([update].into_iter(), DomId::SELF, 1);
        }
        let result = kernel.xen.mmu_update(&[vector.update(at, frames)], DomId::SELF);
        let after = kernel.entry(at);
        let refused = vector.new_flags.err().map(|errno| BatchRefused { entries_done: 0, errno });
        if result.err() == refused
            && without_xen_flags(after) == without_xen_flags(vector.after(frames))
        {
            agreed += 1;
        } else {
            report.not_ok(format_args!(
                "case {number} of an update: {result:?}, {after:?}: {vector:?}"
            ));
        }
    }
    let mut entries = kernel.entries(space, 8..11);
    if let (Some(first), Some(second), Some(third)) =
        (entries.next(), entries.next(), entries.next())
    {
        let at = [first, second, third];
        let batch = refused_second(at, frames);
        let result = kernel.xen.mmu_update(&batch, DomId::SELF);
        let after = at.map(|at| without_xen_flags(kernel.entry(at)));
        if result == Err(REFUSED_AT_SECOND) && after == [without_xen_flags(batch[0].value()), 0, 0]
        {
            report.ok("a batch stops at the update that is refused, and reports it");
        } else {
            report.not_ok(format_args!("a batch with a refused update: {result:?}, {after:x?}"));
        }
    }
    let refused = [
        kernel.memory.foreign().and_then(|frame| {
            let clear = MmuUpdate::new(EntryAddr::new(frame, 3), Command::PreserveAd, Entry::EMPTY);
            kernel.xen.mmu_update(&[clear], DomId::SELF).err()
        }),
        kernel.xen.mmuext_op(&[MmuExtOp::unpin(table)]).err(),
    ];
    if refused == [Some(NOT_OWNED), Some(NOT_PINNED)] {
        report.ok("foreign frames and tables that are not pinned are refused as by the model");
    } else {
        report.not_ok(format_args!("refused in another way than by the model: {refused:?}"));
    }
    report.ok(format_args!("{agreed} of {} updates agree with the model", VECTORS.len()));
    super::case::drop_tables(kernel, space, super::space::CONFIG);
}
