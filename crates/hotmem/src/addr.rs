//! Addresses and sizes as types: those of `hotmem-addr`.

pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
