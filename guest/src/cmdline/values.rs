//! The types of the values of options.

use hotmem::Bytes;

/// How much plugged memory to touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// At most this much in total.
    UpTo(Bytes),
    /// All that can be allocated.
    All,
}

/// Bursts of allocating and freeing, as `set:rounds:bursts:rest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// The memory that a CPU allocates frame by frame and then frees.
    pub set: Bytes,
    /// How often it does this in a burst.
    pub rounds: u32,
    /// The number of bursts, without the first, which is not measured.
    pub bursts: u32,
    /// Milliseconds between two bursts.
    pub rest_ms: u32,
}

/// What happens to touched frames when a shrink needs them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// They are migrated (`off`).
    Never,
    /// They are checked and freed (`on`).
    Checked,
    /// They are freed as they are (`unchecked`).
    Unchecked,
}

/// When the work at boot memory begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkAt {
    /// At the start.
    Boot,
    /// When the balloon has first reached the size that the host requests.
    Inflated,
    /// When more than half of the boot memory has been hinted to a migration.
    Hinted,
}

/// How memory is put online, as for Linux's memory blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Online {
    /// Present, but not given to the allocator.
    Offline,
    /// As the policy decides.
    Online,
    /// For any allocation.
    Kernel,
    /// For movable allocations only.
    Movable,
}

/// How to treat memory that is plugged when its device is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leftover {
    /// It is used, up to the requested size.
    Adopt,
    /// It is unplugged, and the requested size is plugged again.
    Unplug,
}

/// The best way in which devices may interrupt. A device uses it, or the next lower one that it and
/// the machine support.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Interrupts {
    /// No interrupts: devices are polled at each timer tick.
    Poll,
    /// Interrupt lines.
    Intx,
    /// MSI-X messages, one for each device.
    Msix,
}

/// How persistent memory is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Namespace {
    /// Single frames, for a file system.
    FsDax,
    /// Compounds, for programs that map the device.
    DevDax,
    /// Compounds, and RAM between two binds.
    SystemRam,
}

/// Where descriptors of persistent memory lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapOn {
    /// On the device itself.
    Device,
    /// In ordinary memory.
    Memory,
}

/// When the run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitWhen {
    /// After the boot event.
    Boot,
    /// After this many resizes have reached their target.
    Resizes(u32),
    /// Once this much is plugged and requested.
    Size(Bytes),
    /// When persistent memory has been bound as often as requested.
    Nvdimm,
    /// Never by itself.
    Never,
}
