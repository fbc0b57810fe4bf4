//! Tests of other kernels that use Hotmem. `cargo xtask ports` builds the kernels and runs these
//! tests.

mod arceos;
mod c_kernel;
mod kernel;
mod ostd;

/// The tests of each port that `cargo xtask test` runs.
mod first {
    use crate::{arceos, ostd};
    use hotmem::Bytes;

    #[test]
    fn arceos_grows_and_shrinks() {
        arceos::PLAIN.grows_and_shrinks(Bytes::gib(1));
    }

    #[test]
    fn ostd_grows_and_shrinks() {
        ostd::OSTD.grows_and_shrinks(Bytes::gib(1));
    }
}
