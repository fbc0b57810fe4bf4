//! How the driver stands: what it says to people.

use super::config_error::ConfigError;
use super::request::ResponseError;
use core::fmt;
use hotmem::{Bytes, PfnRange};

/// How the device and its memory stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Finding out by STATE requests what is plugged.
    Synchronising,
    /// On the way to the size that the device wants.
    Resizing,
    /// What the device wants is plugged, all of it, and online as asked.
    Reached,
    /// The size cannot be reached for now. The driver keeps trying, seldom, as far as that can
    /// help, or at once when the device wants something else.
    Pending(Pending),
    /// The device is not to be trusted and is left alone. Its plugged memory stays usable.
    Failed(Failure),
}

/// The reason why a size is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The device answers NACK.
    Nack,
    /// The device answers BUSY.
    Busy,
    /// The device answers ERROR.
    DeviceError,
    /// The device does not answer. Its answer is still accepted, whenever it comes.
    NoAnswer,
    /// The device wants more than its usable region holds.
    UsableRegion,
    /// The device changes what it wants faster than it lets anything be done.
    TargetUnsteady,
    /// The device's `plugged_size` disagrees with what its blocks say.
    PluggedSize,
    /// The memory manager cannot prepare memory, or bring it online, for this reason.
    Memory(&'static str),
    /// As much is plugged as can be: the device wants no whole number of units within its region.
    /// There is nothing to try again until it wants something else.
    Units {
        /// What the device wants.
        requested: Bytes,
        /// What can be plugged of that.
        reachable: Bytes,
        /// What can be plugged or unplugged at least, aligned to its size.
        unit: Bytes,
    },
}

/// The reason why a device is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its configuration cannot be right.
    Config(ConfigError),
    /// Its configuration space cannot be read any more.
    ConfigSpace,
    /// Its answer is none.
    Response(ResponseError),
    /// The memory manager does not take its region, for this reason.
    Region(&'static str),
    /// It says that memory in use is not plugged.
    Lost(PfnRange),
    /// It unplugged a part of this range although it answered ERROR. The range stays isolated.
    HalfUnplugged(PfnRange),
    /// It says that a single block is both plugged and unplugged.
    MixedBlock(PfnRange),
    /// Its `plugged_size` keeps disagreeing with what its blocks say.
    PluggedSize {
        /// `plugged_size`.
        claimed: Bytes,
        /// The sum of its blocks.
        found: Bytes,
    },
    /// The memory manager answered with a range that it was not asked about.
    Memory(PfnRange),
}

/// What happened so far. Counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests sent.
    pub requests: u64,
    /// Requests acknowledged.
    pub acks: u64,
    /// Requests answered NACK.
    pub nacks: u64,
    /// Requests answered BUSY.
    pub busies: u64,
    /// Requests answered ERROR.
    pub errors: u64,
    /// Answers that were none.
    pub malformed: u64,
    /// Answers to nothing.
    pub stray: u64,
    /// Requests that were not answered in time.
    pub overdue: u64,
    /// Times that the driver asked the device which blocks are plugged.
    pub resyncs: u64,
    /// Times that something could not be done yet and was put off.
    pub put_off: u64,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Pending::Nack => "the device answers NACK",
            Pending::Busy => "the device answers BUSY",
            Pending::DeviceError => "the device answers ERROR",
            Pending::NoAnswer => "the device does not answer",
            Pending::UsableRegion => "the device wants more than its usable region holds",
            Pending::TargetUnsteady => "the device keeps changing what it wants",
            Pending::PluggedSize => "plugged_size disagrees with the device's blocks",
            Pending::Memory(why) => why,
            Pending::Units { requested, reachable, unit } => {
                return write!(
                    f,
                    "the device wants {requested}, of which {reachable} can be had in units of {unit}"
                );
            }
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Failure::Config(error) => write!(f, "configuration: {error}"),
            Failure::ConfigSpace => f.write_str("the configuration space cannot be read any more"),
            Failure::Response(error) => write!(f, "response: {error}"),
            Failure::Region(why) => write!(f, "region: {why}"),
            Failure::Lost(range) => write!(f, "{range} is in use, yet not plugged"),
            Failure::HalfUnplugged(range) => write!(f, "{range} was unplugged in part"),
            Failure::MixedBlock(range) => write!(f, "block {range} is plugged in part"),
            Failure::PluggedSize { claimed, found } => {
                write!(f, "plugged_size is {claimed}, its blocks are {found}")
            }
            Failure::Memory(range) => write!(f, "memory manager answered {range}"),
        }
    }
}

impl core::error::Error for Failure {}
