//! The choice for memory that is plugged when the driver starts.

/// What becomes of memory that is plugged when the driver starts and that its memory manager does
/// not know: another kernel had it before (kexec), or the VMM plugged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// It is taken over, as far as the device still wants it, and unplugged otherwise. STATE
    /// requests find out which blocks are plugged.
    #[default]
    Adopt,
    /// The device unplugs all of it on one UNPLUG_ALL request, and what it wants is plugged anew. A
    /// device that answers ERROR is asked block by block instead, as for [`Adopt`](Self::Adopt).
    UnplugAll,
}
