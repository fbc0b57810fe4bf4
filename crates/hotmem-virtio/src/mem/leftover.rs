//! The treatment of memory that is plugged when the driver starts.

/// How to treat memory that is plugged when the driver starts and that its memory manager does not
/// know: an earlier kernel used it (kexec), or the VMM plugged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// Use it, up to the requested size, and unplug the rest. STATE requests find out which blocks
    /// are plugged.
    #[default]
    Adopt,
    /// Unplug all of it by one UNPLUG_ALL request, and plug the requested size again. If the device
    /// answers ERROR, its blocks are queried instead, as for [`Adopt`](Self::Adopt).
    UnplugAll,
}
