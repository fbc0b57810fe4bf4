//! Defines the types of the options' values.

use hotmem::Bytes;

/// The amount of plugged memory to touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// At most this much in total.
    UpTo(Bytes),
    /// All memory that can be allocated.
    All,
}

/// A device that is checked point by point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckedDevice {
    /// The first virtio-mem device (`memory`).
    Memory,
    /// The first balloon (`balloon`).
    Balloon,
}

/// Bursts of allocating and freeing, as `set:rounds:bursts:rest`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Faults {
    /// The memory that a CPU allocates frame by frame and then frees.
    pub set: Bytes,
    /// The number of times that a CPU allocates and frees the set in a burst.
    pub rounds: u32,
    /// The number of bursts that are measured. Before them, each CPU makes one burst that is not
    /// measured.
    pub bursts: u32,
    /// The time between two bursts of a CPU, in milliseconds.
    pub rest_ms: u32,
}

/// How touched frames are treated when their memory is unplugged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// They are migrated (`off`).
    Never,
    /// They are checked and freed (`on`).
    Checked,
    /// They are freed without a check (`unchecked`).
    Unchecked,
}

/// Which free memory is marked as zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZeroMarks {
    /// None, because the host is not trusted (`off`).
    Off,
    /// Reported memory that the balloon device says it has zeroed (`device`). The device must offer
    /// `DEVICE_INIT_REPORTED`, which QEMU does not have yet.
    Device,
    /// All reported memory (`reported`). Whoever starts the guest vouches that the host zeroes it.
    /// QEMU does if the guest's memory is anonymous, and nothing keeps QEMU from discarding it,
    /// such as a device that is passed through or a postcopy migration.
    Reported,
}

/// When the workload begins to fill boot memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkAt {
    /// At the start.
    Boot,
    /// When the balloon has first reached the size that the host requests.
    Inflated,
    /// When more than half of the boot memory has been hinted to the host during a migration.
    Hinted,
}

/// How plugged memory is put online. The names are those of Linux's memory blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Online {
    /// The memory stays offline.
    Offline,
    /// Online as the engine's policy decides.
    Online,
    /// Online for any allocation.
    Kernel,
    /// Online for movable allocations only.
    Movable,
}

impl Online {
    pub(crate) fn parse(text: &str) -> Option<Online> {
        Some(match text {
            "offline" => Online::Offline,
            "online" => Online::Online,
            "online_kernel" => Online::Kernel,
            "online_movable" => Online::Movable,
            _ => return None,
        })
    }
}

/// How to treat memory that is plugged already when its device is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leftover {
    /// The memory is used, up to the requested size.
    Adopt,
    /// The memory is unplugged, and then the requested size is plugged.
    Unplug,
}

/// The best way in which devices may interrupt. A device uses this way if the device and the
/// machine support it, and otherwise the next earlier way of this list that both support.
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
    /// Compounds. Between two binds the memory is used as RAM.
    SystemRam,
}

impl Namespace {
    /// Returns whether commands can make the memory RAM, and a device's memory again, as daxctl does.
    #[must_use]
    pub fn is_reconfigurable(self) -> bool {
        self != Namespace::FsDax
    }
}

/// How the memory of CXL devices is used at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CxlMode {
    /// As device memory (`devdax`).
    DevDax,
    /// As RAM, which is put online as `hotmem.online` says (`system-ram`).
    SystemRam,
}

/// The memory that contains the descriptors of persistent memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DescriptorPlace {
    /// The device itself.
    Device,
    /// RAM.
    Memory,
}

/// When the run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitWhen {
    /// After the boot event.
    Boot,
    /// After this many resizes have reached their target.
    Resizes(u32),
    /// When this size is requested and plugged.
    Size(Bytes),
    /// After the balloon has reached this many sizes that the host requested.
    Inflations(u32),
    /// When this much free memory has been reported to the host.
    Reported(Bytes),
    /// When persistent memory has been bound as often as requested.
    Nvdimm,
    /// When the program that started the machine sends the command `end`. The kernel takes commands
    /// from its second serial port.
    Command,
    /// Never. The program that started the machine ends it.
    Never,
}

/// A CPU whose stack overflows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StackOf {
    /// The CPU that boots.
    FirstCpu,
    /// The CPU that is started next.
    OtherCpu,
}
