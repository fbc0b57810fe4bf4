//! Accesses registers of devices. The processor keeps accesses to registers in order.

use crate::arch::flat_image::mmio::{define_reads, define_writes};

define_reads! {
    read_u8 -> u8: "ldrb {:w}, [{}]";
    read_u32 -> u32: "ldr {:w}, [{}]";
    read_u64 -> u64: "ldr {}, [{}]";
}

define_writes! {
    write_u8(u8): "dsb sy", "strb {:w}, [{}]";
    write_u16(u16): "dsb sy", "strh {:w}, [{}]";
    write_u32(u32): "dsb sy", "str {:w}, [{}]";
    write_u64(u64): "dsb sy", "str {}, [{}]";
}
