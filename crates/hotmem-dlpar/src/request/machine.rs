//! What a request works on.

use hotmem::{Hooks, Hotplug};

/// The machine that a request works on.
pub struct Machine<'m, 'f, P, M, C: ?Sized> {
    /// The engine.
    pub hotplug: &'m mut Hotplug<'f, P, M>,
    /// The kernel.
    pub hooks: &'m mut dyn Hooks,
    /// The hypervisor.
    pub connectors: &'m mut C,
}
