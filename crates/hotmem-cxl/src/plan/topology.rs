//! Describes the bridges and devices for which decoders are planned, and the plan's steps.

use crate::{
    cedt::Restrictions,
    decoder::{Occupancy, Setting},
    interleave::Granularity,
};
use core::{fmt, ops::Range};
use hotmem_addr::{Bytes, PfnRange};

/// A host bridge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bridge {
    /// The number by which windows name it.
    pub uid: u32,
    /// Its decoders. `None`: it has one port and passes all addresses to it.
    pub decoders: Option<Occupancy>,
}

/// A memory device below a port of a host bridge, without a switch between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The [`uid`](Bridge::uid) of the bridge.
    pub bridge: u32,
    /// The number of the port, as [`port_number`](crate::config::port_number) reads it.
    pub port: u8,
    /// The decoders.
    pub decoders: Occupancy,
    /// The bytes of the device to which addresses may be routed: all of its memory, or one partition.
    pub memory: Range<u64>,
}

/// What is to be planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// How much of each device is mapped: a multiple of [`UNIT`](crate::UNIT).
    pub len: Bytes,
    /// How many bytes of each device follow each other, if the window does not say it. The planner uses
    /// fewer if the address bits for so many cannot select a device.
    pub granularity: Granularity,
    /// What the window must allow, for example [`Restrictions::VOLATILE`].
    pub kind: Restrictions,
}

/// A bridge or a device, by its position in the list that the planner was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Component {
    /// A bridge.
    Bridge(usize),
    /// A device.
    Device(usize),
}

/// A decoder to commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Whose decoder.
    pub component: Component,
    /// Its number.
    pub n: u32,
    /// What it is set to.
    pub setting: Setting,
}

/// The reason why there is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlanError {
    /// The number of devices is not a power of two up to 16.
    Devices(usize),
    /// The length is 0 or no multiple of the unit.
    Len(Bytes),
    /// The window does not allow such memory, or its decoders must stay as they are.
    Restrictions(Restrictions),
    /// The window alternates between 3, 6 or 12 bridges, or by XOR arithmetic.
    WindowInterleave,
    /// The window names this bridge twice.
    RepeatedTarget {
        /// The bridge.
        uid: u32,
    },
    /// The window names a bridge that is not in the list.
    UnknownBridge {
        /// The bridge.
        uid: u32,
    },
    /// The window is not routed to the bridge of this device.
    OutsideWindow {
        /// The position of the device.
        device: usize,
    },
    /// The devices are not distributed equally among the bridges.
    Uneven {
        /// The bridge.
        uid: u32,
        /// The number of devices below it.
        found: usize,
        /// The number that would be equal.
        wanted: usize,
    },
    /// Two devices are below one port, so there is a switch between.
    SharedPort {
        /// The position of the second device.
        device: usize,
    },
    /// The bridge has several devices but no decoders.
    NoDecoders {
        /// The bridge.
        uid: u32,
    },
    /// All decoders of the component are in use.
    NoFreeDecoder(Component),
    /// The devices or bridges cannot alternate as it would be necessary.
    Interleave,
    /// The device has less memory that is not mapped.
    DeviceFull {
        /// The position of the device.
        device: usize,
        /// How much it has.
        free: Bytes,
    },
    /// The window has no room for addresses after those that are in use.
    WindowFull {
        /// The window.
        window: PfnRange,
        /// The size of the addresses.
        wanted: Bytes,
    },
}

impl core::error::Error for PlanError {}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Devices(count) => {
                write!(f, "{count} devices, which is no power of two up to 16")
            }
            PlanError::Len(len) => write!(f, "{len} of each device are not whole units of 256 MiB"),
            PlanError::Restrictions(Restrictions(bits)) => {
                write!(f, "the window has restrictions {bits:#x}")
            }
            PlanError::WindowInterleave => {
                f.write_str("the window alternates by 3, 6 or 12 ways, or by XOR arithmetic")
            }
            PlanError::RepeatedTarget { uid } => write!(f, "the window names bridge {uid} twice"),
            PlanError::UnknownBridge { uid } => write!(f, "there is no bridge {uid}"),
            PlanError::OutsideWindow { device } => {
                write!(f, "the window is not routed to the bridge of device {device}")
            }
            PlanError::Uneven { uid, found, wanted } => {
                write!(f, "bridge {uid} has {found} devices instead of {wanted}")
            }
            PlanError::SharedPort { device } => {
                write!(f, "device {device} shares its port with another one")
            }
            PlanError::NoDecoders { uid } => write!(f, "bridge {uid} has no decoders"),
            PlanError::NoFreeDecoder(component) => write!(f, "{component} has no free decoder"),
            PlanError::Interleave => f.write_str("the decoders cannot alternate so"),
            PlanError::DeviceFull { device, free } => {
                write!(f, "device {device} has only {free} that are not mapped")
            }
            PlanError::WindowFull { window, wanted } => {
                write!(f, "the window {window} has no room for {wanted}")
            }
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Component::Bridge(n) => write!(f, "bridge {n}"),
            Component::Device(n) => write!(f, "device {n}"),
        }
    }
}
