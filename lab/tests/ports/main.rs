//! Kernels that Hotmem was put into. `cargo xtask ports` builds them, and runs these.

mod arceos;

/// What `cargo xtask test` boots of each port.
mod first {
    use crate::arceos::{self, Image};
    use hotmem::Bytes;

    #[test]
    fn arceos_grows_and_shrinks() {
        arceos::grows_and_shrinks(Image::Plain, Bytes::gib(1));
    }
}
