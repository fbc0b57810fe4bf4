//! Set-up, demo and tests of the workspace.
fn main() {}
