//! Tests of other kernels that use Hotmem. `cargo xtask ports` builds the kernels and runs these
//! tests.

mod arceos;
mod c_kernel;

/// The tests of each port that `cargo xtask test` runs.
mod first {
    use crate::arceos::{self, Image};
    use hotmem::Bytes;

    #[test]
    fn arceos_grows_and_shrinks() {
        arceos::grows_and_shrinks(Image::Plain, Bytes::gib(1));
    }
}
