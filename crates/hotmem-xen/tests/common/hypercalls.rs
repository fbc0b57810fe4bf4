//! Implements the simulated hypercalls. A batch stops at the first entry that is refused.

use super::{Page, Xen};
use hotmem_addr::Pfn;
use hotmem_pgtable::{ENTRIES, EntryAddr, Level};
use hotmem_xen::{BatchRefused, DomId, Errno, Hypervisor, MmuExtOp, MmuUpdate};

impl Hypervisor for &Xen {
    fn mmu_update(&mut self, updates: &[MmuUpdate], owner: DomId) -> Result<(), BatchRefused> {
        assert_eq!(owner, DomId::SELF);
        self.hypercalls.set(self.hypercalls.get() + 1);
        self.updates(updates)
    }

    fn mmuext_op(&mut self, ops: &[MmuExtOp]) -> Result<(), BatchRefused> {
        self.hypercalls.set(self.hypercalls.get() + 1);
        self.run_batch(ops, |op| self.do_operation(*op))
    }

    fn mmuext_op_then_update(
        &mut self,
        ops: &[MmuExtOp],
        updates: &[MmuUpdate],
    ) -> (Result<(), BatchRefused>, Result<(), BatchRefused>) {
        self.hypercalls.set(self.hypercalls.get() + 1);
        (self.run_batch(ops, |op| self.do_operation(*op)), self.updates(updates))
    }
}

impl Xen {
    /// Counts an update or operation. Returns an error if the test has set that it is refused.
    fn count_or_refuse(&self) -> Result<(), Errno> {
        match self.refuse_after.get() {
            Some(0) => {
                let refusals = self.refusals.get().saturating_sub(1);
                self.refusals.set(refusals);
                self.refuse_after.set((refusals > 0).then_some(0));
                Err(Errno::EINVAL)
            }
            refuse_after => {
                self.refuse_after.set(refuse_after.map(|count| count - 1));
                Ok(())
            }
        }
    }

    pub(super) fn do_operation(&self, op: MmuExtOp) -> Result<(), Errno> {
        let (command, argument) = op.parts();
        match command {
            0..=3 => {
                let level = [Level::L1, Level::L2, Level::L3, Level::L4][command as usize];
                let frame = Pfn::new(argument).ok_or(Errno::EINVAL)?;
                if self.page(frame)?.is_pinned {
                    return Err(Errno::EINVAL);
                }
                self.count_table_use(frame, level)?;
                self.set_page(frame, Page { is_pinned: true, ..self.page(frame)? });
            }
            4 => {
                let frame = Pfn::new(argument).ok_or(Errno::EINVAL)?;
                let page = self.page(frame)?;
                if !page.is_pinned {
                    return Err(Errno::EINVAL);
                }
                self.set_page(frame, Page { is_pinned: false, ..page });
                self.release_table_use(frame);
            }
            5 | 15 => {
                let frame = Pfn::new(argument).ok_or(Errno::EINVAL)?;
                self.set_root(usize::from(command == 15), Some(frame))?;
            }
            10 | 11 => self.flush(),
            _ => panic!("operation {command} is not modelled"),
        }
        Ok(())
    }

    /// Sets the root that the CPU uses in kernel mode if `mode` is 0, or in user mode if `mode` is 1.
    /// A root in use counts as a use of the table.
    pub(crate) fn set_root(&self, mode: usize, root: Option<Pfn>) -> Result<(), Errno> {
        if let Some(root) = root {
            self.count_table_use(root, Level::L4)?;
        }
        let mut roots = self.roots.get();
        if let Some(old) = std::mem::replace(&mut roots[mode], root) {
            self.release_table_use(old);
        }
        self.roots.set(roots);
        Ok(())
    }

    /// Calls `run` for the items, and stops at the first error.
    fn run_batch<T>(
        &self,
        items: &[T],
        run: impl Fn(&T) -> Result<(), Errno>,
    ) -> Result<(), BatchRefused> {
        for (entries_done, item) in items.iter().enumerate() {
            self.count_or_refuse()
                .and_then(|()| run(item))
                .map_err(|errno| BatchRefused { entries_done, errno })?;
        }
        Ok(())
    }

    pub(crate) fn updates(&self, updates: &[MmuUpdate]) -> Result<(), BatchRefused> {
        assert!(!updates.is_empty(), "an empty batch was submitted");
        self.run_batch(updates, |update| {
            let (address, command) = update.target();
            let table = Pfn::containing(address).ok_or(Errno::EINVAL)?;
            let index = usize::try_from(address >> 3).unwrap() % ENTRIES;
            assert!([0, 2].contains(&command), "command {command} is not modelled");
            self.update_entry(EntryAddr::new(table, index), update.value(), command == 2)
        })
    }
}
