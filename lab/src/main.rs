//! The `hotmem` command.
fn main() {}
