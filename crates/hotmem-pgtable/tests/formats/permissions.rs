//! Changes of permissions, as flags of each format.

use crate::manual::Manual;
use crate::oracle::PageAttributes;
use hotmem_pgtable::{Attributes, Level};
use proptest::prelude::*;

/// A change of permissions; `None` leaves a permission as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permissions {
    pub(crate) writable: Option<bool>,
    pub(crate) executable: Option<bool>,
}

pub(crate) fn permissions() -> impl Strategy<Value = Permissions> {
    let permission = || prop::sample::select(vec![None, Some(false), Some(true)]);
    (permission(), permission())
        .prop_map(|(writable, executable)| Permissions { writable, executable })
}

impl Permissions {
    /// Returns the flags to set and to clear. The test's addresses hold pages of the kernel and of
    /// user mode, so the flags for both are changed.
    pub(crate) fn flags<M: Manual>(self) -> (M::Flags, M::Flags) {
        use bitflags::Flags as _;
        let pages = |writable, executable| {
            [false, true].map(|user| {
                let used = Attributes { used: false, ..Attributes::KERNEL_DATA };
                let attributes = Attributes { writable, executable, user, ..used };
                M::page_flags(attributes, Level::L1)
            })
        };
        let mut set = M::Flags::empty();
        let mut clear = M::Flags::empty();
        let mut change = |from: [M::Flags; 2], to: [M::Flags; 2]| {
            for (from, to) in from.into_iter().zip(to) {
                set.insert(to.difference(from).difference(M::UNCHANGEABLE));
                clear.insert(from.difference(to).difference(M::UNCHANGEABLE));
            }
        };
        if let Some(writable) = self.writable {
            change(pages(!writable, false), pages(writable, false));
        }
        if let Some(executable) = self.executable {
            change(pages(true, !executable), pages(true, executable));
        }
        (set, clear)
    }

    pub(crate) fn apply(self, attributes: &mut PageAttributes) {
        attributes.writable = self.writable.unwrap_or(attributes.writable);
        attributes.executable = self.executable.unwrap_or(attributes.executable);
    }
}
