//! Accesses registers of devices. The fences order these accesses with those to memory, which the
//! processor may reorder: it keeps only accesses of the same kind to the same device in order
//! (unprivileged specification, 2.7). So a read comes before all later reads of memory.

use crate::arch::flat_image::mmio::{define_reads, define_writes};

define_reads! {
    read_u8 -> u8: "lbu {}, ({})", "fence i, ir";
    read_u32 -> u32: "lw {}, ({})", "fence i, ir";
    read_u64 -> u64: "ld {}, ({})", "fence i, ir";
}

define_writes! {
    write_u8(u8): "fence w, o", "sb {}, ({})";
    write_u16(u16): "fence w, o", "sh {}, ({})";
    write_u32(u32): "fence w, o", "sw {}, ({})";
    write_u64(u64): "fence w, o", "sd {}, ({})";
}
