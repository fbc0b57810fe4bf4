//! Tests of the ports: other kernels with Hotmem as their frame allocator. `cargo xtask ports`
//! builds the kernels and runs the tests.

mod arceos;
mod c_kernel;
mod kernel;
mod ostd;
mod tgoskits;

/// The tests that `cargo xtask test` runs, one for each port in Rust.
mod first {
    use crate::{arceos, ostd};
    use hotmem::Bytes;

    #[test]
    fn arceos_plugs_uses_and_unplugs_memory() {
        arceos::ARCEOS.plugs_and_unplugs(Bytes::gib(1));
    }

    #[test]
    fn ostd_plugs_uses_and_unplugs_memory() {
        ostd::OSTD.plugs_and_unplugs(Bytes::gib(1));
    }
}
