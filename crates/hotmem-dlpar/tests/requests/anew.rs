//! Drops the open request with the table, and begins anew.

use crate::common::{TableStorage, size, v2};
use crate::partition::{LMB_BYTES, NUMA, Partition, entries};
use hotmem::OnlineType;
use hotmem_dlpar::{Dlpar, DynamicMemory, LookupArrays, Machine, Table, Version};
use hotmem_testkit::forwarding::with_kernel;
use std::mem::replace;

impl Partition<'_, '_> {
    /// Drops the [`Dlpar`] and its table. Makes both anew from the device tree as the partition had it
    /// at the start, or as the last update has written it, and lets the table recover. Returns the
    /// number of LMBs that the partition may have without their memory.
    pub(crate) fn drop_and_begin_anew(&mut self) -> u32 {
        let without_request = Dlpar::new(self.new_table(), &self.hotplug);
        drop(replace(&mut self.dlpar, without_request));
        let mut table = self.new_table();
        let Partition { hotplug, kernel, hypervisor, .. } = self;
        let connectors = with_kernel(hotplug, kernel, |hotplug, hooks| {
            let mut machine = Machine { hotplug, hooks, connectors: hypervisor };
            table.recover(&mut machine, OnlineType::AsBefore)
        });
        self.dlpar = Dlpar::new(table, &self.hotplug);
        connectors.expect("nothing prevents the recovery")
    }

    /// Makes a table from the device tree.
    fn new_table(&self) -> Table<'static> {
        let written = self.hypervisor.property();
        let property =
            if written.is_empty() { v2(&entries(), LMB_BYTES) } else { written.to_vec() };
        let memory = DynamicMemory::parse(Version::V2, &property, size(LMB_BYTES))
            .expect("the value is valid");
        let lists = LookupArrays::parse(&self.lists).expect("the value is valid");
        // The storage must live as long as that of the first table, so it is not freed.
        let storage = Box::leak(Box::new(TableStorage::of(&memory, &lists)));
        Table::new(&memory, &lists, NUMA, storage.storage()).expect("the value is valid")
    }
}
