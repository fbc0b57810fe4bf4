//! Names the types of each format, and those of the target's format.

macro_rules! aliases {
    ($(#[$docs:meta])* $module:ident: $format:ty, { $($exported:item)* }) => {
        $(#[$docs])*
        pub mod $module {
            $($exported)*
            /// The format.
            pub type Format = $format;
            /// An entry.
            pub type Entry = crate::Entry<Format>;
            /// An entry with its place.
            pub type LocatedEntry = crate::LocatedEntry<Format>;
            /// A batch of entries.
            pub type Batch = crate::Batch<Format>;
            /// An address space.
            pub type Space = crate::Space<Format>;
            /// A run of pages.
            pub type Run = crate::Run<Format>;
            /// A change of the flags of pages.
            pub type Change = crate::Change<Format>;
            /// The error of an operation that stopped.
            pub type Stopped<Fault> = crate::Stopped<Fault, Format>;
            /// The reason why an operation stopped.
            pub type StopReason<Fault> = crate::StopReason<Fault, Format>;
            /// The reason why [`Native`](crate::Native) has not changed page tables.
            pub type NativeFault = crate::NativeFault<Format>;
            /// The reason why pages were not moved.
            pub type MoveError = crate::MoveError<Format>;
        }
    };
}

aliases! {
    /// The format of x86-64, and the crate's types for it.
    x86_64: crate::format::X86_64, { pub use crate::format::X86Flags as Flags; }
}

aliases! {
    /// The format of aarch64 with the 4 KiB granule, and the crate's types for it.
    aarch64: crate::format::Aarch64, { pub use crate::format::{Aarch64Flags as Flags, MAIR, Ttbr}; }
}

aliases! {
    /// The format of riscv64 (Sv39, Sv48 and Sv57), and the crate's types for it.
    riscv64: crate::format::Riscv64, { pub use crate::format::Riscv64Flags as Flags; }
}

#[cfg(target_arch = "aarch64")]
pub use aarch64 as target;
#[cfg(target_arch = "riscv64")]
pub use riscv64 as target;
#[cfg(target_arch = "x86_64")]
pub use x86_64 as target;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
aliases! {
    /// The target has no format: code that uses these types does not compile.
    target: NoFormat, {
        /// Not a [`Format`](crate::Format).
        #[derive(Clone, Copy, Debug)]
        pub struct NoFormat;
    }
}
