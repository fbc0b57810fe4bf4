//! Holds the kernel's settings for the whole machine.

use super::online_type::OnlineType;
use super::policy::Policy;

/// The kernel's settings for the whole machine. The kernel can change them at any time; a change
/// takes effect for later requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The type that memory comes online for if neither the request nor the driver names a type.
    /// The default is [`OnlineType::Offline`].
    pub auto_online: OnlineType,
    /// The policy that chooses the zone of memory that comes online as [`OnlineType::Online`].
    pub policy: Policy,
    /// The number of frames that a request to take memory offline must leave free, so that the
    /// kernel can still allocate frames. The default is 0.
    pub min_free_frames: u64,
    /// Whether the kernel has descriptors for the holes of each section (128 MiB) that has boot
    /// memory. If so, a zone with such holes can be contiguous. The default is false.
    pub holes_described: bool,
    /// Whether all of the boot memory is online. A kernel that puts a part of the boot memory
    /// online later sets this to false until then; while it is false, no zone counts as contiguous.
    /// The default is true.
    pub boot_complete: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            auto_online: OnlineType::Offline,
            policy: Policy::default(),
            min_free_frames: 0,
            holes_described: false,
            boot_complete: true,
        }
    }
}
