//! Defines the parts of the machine that a request works on.

use hotmem::{Hooks, Hotplug};

/// The parts of the machine that a request works on.
pub struct Machine<'m, 'f, P, M, C: ?Sized> {
    /// The engine.
    pub hotplug: &'m mut Hotplug<'f, P, M>,
    /// The kernel's hooks.
    pub hooks: &'m mut dyn Hooks,
    /// The hypervisor.
    pub connectors: &'m mut C,
}
