//! What the steps of a poll work with.

use super::Hotplug;
use super::budget::Allowance;
use crate::hooks::Hooks;

/// A poll of a request: the instance, the kernel, and what remains of the poll's budget.
pub(super) struct Poll<'a, 'f, P, M> {
    pub(super) hotplug: &'a mut Hotplug<'f, P, M>,
    pub(super) hooks: &'a mut dyn Hooks,
    pub(super) allowance: Allowance,
}
