//! Defines how the driver treats memory that is plugged when it starts.

/// How to treat memory that is plugged when the driver starts, but that the memory manager does not
/// know. An earlier kernel used such memory (kexec), or the VMM plugged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// Use the memory, up to the requested size, and unplug the rest. The driver finds out by STATE
    /// requests which blocks are plugged.
    #[default]
    Adopt,
    /// Unplug all memory by one UNPLUG_ALL request, and plug the requested size again. If the
    /// device answers ERROR, the driver queries the blocks instead, as for [`Adopt`](Self::Adopt).
    UnplugAll,
}
