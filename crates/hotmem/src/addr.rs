//! Re-exports addresses and sizes as types, from `hotmem-addr`.

pub use hotmem_addr::{AddrError, Bytes, Pfn, PfnRange};
