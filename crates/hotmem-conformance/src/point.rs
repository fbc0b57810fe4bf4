//! Defines a point of the suite, and how one is checked.

use crate::balloon::{self, Balloon};
use crate::device::Device;
use crate::device_type::DeviceType;
use crate::driver::{Clock, Driver};
use crate::failure::{Failure, Stop};
use crate::mem::{self, Memory};

/// One requirement on a device.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The name, such as `mem/plug/first-block`.
    pub name: &'static str,
    /// The section of VIRTIO 1.3 that the point checks, over virtio-mmio: [`over_pci`](Self::over_pci).
    pub section: &'static str,
    /// Who requires it.
    pub requirement: Requirement,
    /// What a device that passes does, in a sentence.
    pub statement: &'static str,
    /// Who requires it over PCI, and in which section, if it is another one.
    pub(crate) pci: Option<(Requirement, &'static str)>,
    pub(crate) check: Check,
}

/// Who requires what a point checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requirement {
    /// The specification says that a device MUST do it.
    Must,
    /// The specification describes it without such a word, and drivers rely on it.
    Convention,
}

/// How a point ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device does what the point requires.
    Passed,
    /// The device does not do so.
    Failed(Failure),
    /// The point cannot be checked with this device, for this reason.
    Skipped(&'static str),
}

type TransportCheck = fn(&mut Driver<'_>, &DeviceType) -> Result<(), Stop>;
type MemoryCheck = fn(&mut Memory<'_>) -> Result<(), Stop>;
type BalloonCheck = fn(&mut Balloon<'_>) -> Result<(), Stop>;

/// The steps of a point, and the state in which the device is when they begin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Check {
    /// A device of the type that was reset.
    Transport(TransportCheck, &'static DeviceType),
    /// A memory device that was started with all features, and of which nothing is plugged.
    Memory(MemoryCheck),
    /// A balloon that was started with all features.
    Balloon(BalloonCheck),
}

impl Point {
    /// Returns the point with the section that requires it of a device on PCI, whose registers are those of
    /// 4.1.4 and not those of 4.2.2. The steps are the same.
    #[must_use]
    pub fn over_pci(self) -> Point {
        match self.pci {
            Some((requirement, section)) => Point { section, requirement, ..self },
            None => self,
        }
    }

    pub(crate) const fn with_pci(self, requirement: Requirement, section: &'static str) -> Point {
        Point { pci: Some((requirement, section)), ..self }
    }

    /// Changes who requires the point, except for what [`with_pci`](Self::with_pci) says.
    pub(crate) const fn required_by(
        self,
        requirement: Requirement,
        section: &'static str,
    ) -> Point {
        Point { section, requirement, ..self }
    }

    /// Checks the point with a device, which is reset first, and whose memory is unplugged. A new device
    /// for each point is best, because what else an earlier point has changed is not undone. A guest
    /// cannot make one, and uses its device again.
    ///
    /// Cost: some tens of requests, and for a memory device one for each of the first 1024 usable blocks
    /// and one for each 65,535 blocks behind them.
    ///
    /// # Panics
    /// Panics if [`GuestMemory::ram`](crate::GuestMemory::ram) returns less memory than it promises.
    pub fn check(&self, device: &mut dyn Device, clock: Clock<'_>) -> Outcome {
        let result = match self.check {
            Check::Transport(check, kind) => check_transport(check, kind, device, clock),
            Check::Memory(check) => check_memory(check, device, clock),
            Check::Balloon(check) => check_balloon(check, device, clock),
        };
        match result {
            Ok(()) => Outcome::Passed,
            Err(Stop::Failed(failure)) => Outcome::Failed(failure),
            Err(Stop::Skipped(reason)) => Outcome::Skipped(reason),
        }
    }
}

// The three functions are not inlined, so that only one of them takes stack.

#[inline(never)]
fn check_transport(
    check: TransportCheck,
    kind: &DeviceType,
    device: &mut dyn Device,
    clock: Clock<'_>,
) -> Result<(), Stop> {
    let mut driver = Driver::new(device, kind.id, clock)?;
    check(&mut driver, kind)?;
    Ok(driver.finish()?)
}

// The drivers are large, and a debug build copies them at each move. So that no function takes more stack
// than a kernel has, one function makes a driver, and another one uses it.

#[inline(never)]
fn check_memory(check: MemoryCheck, device: &mut dyn Device, clock: Clock<'_>) -> Result<(), Stop> {
    let mut memory = start_memory(device, clock)?;
    check(&mut memory)?;
    memory.finish()
}

#[inline(never)]
fn start_memory<'a>(device: &'a mut dyn Device, clock: Clock<'a>) -> Result<Memory<'a>, Stop> {
    Memory::start(Driver::new(device, mem::TYPE.id, clock)?)
}

#[inline(never)]
fn check_balloon(
    check: BalloonCheck,
    device: &mut dyn Device,
    clock: Clock<'_>,
) -> Result<(), Stop> {
    let mut balloon = start_balloon(device, clock)?;
    check(&mut balloon)?;
    balloon.finish()
}

#[inline(never)]
fn start_balloon<'a>(device: &'a mut dyn Device, clock: Clock<'a>) -> Result<Balloon<'a>, Stop> {
    Balloon::start(Driver::new(device, balloon::TYPE.id, clock)?)
}

impl core::fmt::Display for Requirement {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Requirement::Must => "MUST",
            Requirement::Convention => "convention",
        })
    }
}
