//! Tests of TGOSKits' ArceOS with Hotmem as its only frame allocator.

use crate::kernel::TestedKernel;
use hotmem::Bytes;
use hotmem_lab::port::{self, Kernel};

pub(crate) const ARCEOS: TestedKernel = TestedKernel(port::TGOSKITS);

#[test]
fn memory_is_plugged_used_and_unplugged() {
    ARCEOS.plugs_and_unplugs(Bytes::gib(1));
}

#[test]
fn memory_is_plugged_used_and_unplugged_with_four_cpus() {
    TestedKernel(Kernel { name: "ArceOS of TGOSKits with four CPUs", cpus: 4, ..ARCEOS.0 })
        .plugs_and_unplugs(Bytes::gib(1));
}
