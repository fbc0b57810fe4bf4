//! Checks a memory device behind an MMIO transport: the adapter that a VMM's author writes. The argument
//! `--list` lists the points, and a part of a name selects points.
//!
//! `Model` stands for the VMM: its transport, the memory of its guest, and its API.

use hotmem_conformance::model::Model;
use hotmem_conformance::runner::Suite;
use hotmem_conformance::{GuestMemory, Host, Inaccessible, MEMORY_POINTS, Registers, Unsupported};
use std::ops::Range;
use std::process::ExitCode;

struct Adapter {
    vmm: Model,
}

impl Registers for Adapter {
    // Often `self.transport.bus_read(offset, data)`.
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        self.vmm.read(offset, data);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.vmm.write(offset, data);
    }

    // Handles the events of the queues, which otherwise an event loop does.
    fn run(&mut self) {
        self.vmm.run();
    }
}

impl GuestMemory for Adapter {
    fn ram(&self) -> Range<u64> {
        self.vmm.ram()
    }

    // Often `self.memory.read_slice(data, GuestAddress(addr)).map_err(|_| Inaccessible)`.
    fn read_memory(&mut self, addr: u64, data: &mut [u8]) -> Result<(), Inaccessible> {
        self.vmm.read_memory(addr, data)
    }

    fn write_memory(&mut self, addr: u64, data: &[u8]) -> Result<(), Inaccessible> {
        self.vmm.write_memory(addr, data)
    }
}

impl Host for Adapter {
    fn set_requested_size(&mut self, bytes: u64) -> Result<(), Unsupported> {
        self.vmm.set_requested_size(bytes)
    }
}

fn main() -> ExitCode {
    Suite::new(MEMORY_POINTS, || Adapter { vmm: Model::memory(None) }).main()
}

#[test]
fn the_device_behind_the_adapter_passes_its_points() {
    assert!(Suite::new(MEMORY_POINTS, || Adapter { vmm: Model::memory(None) }).run().is_ok());
}
