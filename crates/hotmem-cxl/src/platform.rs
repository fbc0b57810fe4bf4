//! Collects the host bridges and windows of a platform, and refuses those that contradict others or
//! RAM.

use crate::cedt::{HostBridge, Structure, Window};
use core::fmt;
use hotmem_addr::PfnRange;

/// The bridges and windows of a platform: at most `N` of each.
///
/// ```
/// use hotmem_cxl::{PfnRange, Platform, cedt};
///
/// /// Reads the CEDT without its header. `report` is told what is refused.
/// fn read(table: &[u8], ram: &[PfnRange], mut report: impl FnMut(&dyn core::error::Error)) -> Platform<8> {
///     let mut platform = Platform::default();
///     for structure in cedt::structures(table) {
///         match structure {
///             Ok(structure) => {
///                 if let Err(error) = platform.add(structure, ram) {
///                     report(&error);
///                 }
///             }
///             Err(error) => report(&error),
///         }
///     }
///     platform
/// }
/// assert_eq!(read(&[], &[], |_| {}).windows().count(), 0);
/// ```
#[derive(Clone, Debug)]
pub struct Platform<const N: usize> {
    bridges: [Option<HostBridge>; N],
    windows: [Option<Window>; N],
}

/// The reason why a bridge or a window was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PlatformError {
    /// There is no room for more structures of this kind.
    Full {
        /// The number that fits.
        capacity: usize,
    },
    /// Another bridge has this number.
    RepeatedBridge {
        /// The number.
        uid: u32,
    },
    /// The range overlaps RAM.
    OverlapsRam {
        /// The range of the window, or of the bridge's registers.
        range: PfnRange,
        /// The RAM.
        ram: PfnRange,
    },
    /// The range overlaps another window, or the registers of a bridge.
    Overlaps {
        /// The range of the window, or of the bridge's registers.
        range: PfnRange,
        /// The other range.
        other: PfnRange,
    },
}

impl<const N: usize> Default for Platform<N> {
    fn default() -> Self {
        Platform { bridges: [None; N], windows: [None; N] }
    }
}

impl<const N: usize> Platform<N> {
    /// Adds a structure of the CEDT. `ram` is all memory that is known without CXL, in any order.
    ///
    /// # Errors
    /// There is no room, or the structure contradicts one that was added before, or it overlaps RAM.
    /// The platform is unchanged.
    pub fn add(&mut self, structure: Structure, ram: &[PfnRange]) -> Result<(), PlatformError> {
        match structure {
            Structure::HostBridge(bridge) => {
                if self.bridge(bridge.uid).is_some() {
                    return Err(PlatformError::RepeatedBridge { uid: bridge.uid });
                }
                self.check(bridge.registers, ram)?;
                insert(&mut self.bridges, bridge)
            }
            Structure::Window(window) => {
                self.check(window.range, ram)?;
                insert(&mut self.windows, window)
            }
            Structure::Other { .. } => Ok(()),
        }
    }

    /// Refuses a range that overlaps anything known.
    fn check(&self, range: PfnRange, ram: &[PfnRange]) -> Result<(), PlatformError> {
        if let Some(&ram) = ram.iter().find(|ram| ram.overlaps(range)) {
            return Err(PlatformError::OverlapsRam { range, ram });
        }
        let windows = self.windows().map(|window| window.range);
        let mut others = windows.chain(self.bridges().map(|bridge| bridge.registers));
        match others.find(|other| other.overlaps(range)) {
            Some(other) => Err(PlatformError::Overlaps { range, other }),
            None => Ok(()),
        }
    }

    /// Returns the windows in the order in which they were added.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().flatten()
    }

    /// Returns the bridges in the order in which they were added.
    pub fn bridges(&self) -> impl Iterator<Item = &HostBridge> {
        self.bridges.iter().flatten()
    }

    /// Returns the bridge with this number.
    #[must_use]
    pub fn bridge(&self, uid: u32) -> Option<&HostBridge> {
        self.bridges().find(|bridge| bridge.uid == uid)
    }
}

fn insert<T>(places: &mut [Option<T>], item: T) -> Result<(), PlatformError> {
    let capacity = places.len();
    let place = places.iter_mut().find(|place| place.is_none());
    *place.ok_or(PlatformError::Full { capacity })? = Some(item);
    Ok(())
}

impl core::error::Error for PlatformError {}

impl fmt::Display for PlatformError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlatformError::Full { capacity } => {
                write!(f, "there is no room for more than {capacity}")
            }
            PlatformError::RepeatedBridge { uid } => write!(f, "there are two bridges {uid}"),
            PlatformError::OverlapsRam { range, ram } => write!(f, "{range} overlaps RAM {ram}"),
            PlatformError::Overlaps { range, other } => write!(f, "{range} overlaps {other}"),
        }
    }
}
