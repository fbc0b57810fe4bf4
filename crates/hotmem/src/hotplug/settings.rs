//! What a kernel decides for the whole machine.

use super::online_type::OnlineType;
use super::policy::Policy;

/// What a kernel decides for the whole machine. It can change at any time, and counts for what is
/// asked from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// What memory comes online for when neither the request nor the driver that brings it names a
    /// type; [`OnlineType::Offline`] unless it is set here.
    pub auto_online: OnlineType,
    /// What decides for memory that comes online as [`OnlineType::Online`].
    pub policy: Policy,
    /// No request takes memory offline that would leave fewer frames free than these: for what a
    /// kernel must be able to allocate whatever is asked of it. 0 unless it is set here.
    pub floor: u64,
    /// Whether the kernel's descriptors cover the holes of each section (128 MiB) that has boot
    /// memory: if so, these do not end contiguity. They do unless it is set here.
    pub holes_described: bool,
    /// Whether all of the boot memory is online. A kernel that brings the rest online later says so
    /// here: meanwhile no zone is called contiguous.
    pub boot_complete: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            auto_online: OnlineType::Offline,
            policy: Policy::default(),
            floor: 0,
            holes_described: false,
            boot_complete: true,
        }
    }
}
