//! Points of any device: its status, its features and its queues.

use crate::device_type::DeviceType;
use crate::driver::Driver;
use crate::failure::{Failure, Stop, expect, require};
use crate::registers::{ACKNOWLEDGE, CONFIG_CHANGE, DRIVER, USED_BUFFER, VERSION_1};

type Result = core::result::Result<(), Stop>;

/// A queue that neither type of device has.
const UNUSED_QUEUE: u16 = 60;

pub(crate) fn reset_reads_zero(driver: &mut Driver<'_>, _: &DeviceType) -> Result {
    driver.acknowledge();
    expect("the status", ACKNOWLEDGE | DRIVER, driver.status())?;
    Ok(driver.reset()?)
}

pub(crate) fn reset_after_driver_ok(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    start(driver, kind)?;
    driver.reset()?;
    // The device starts again.
    Ok(start(driver, kind)?)
}

/// A device that accepts fewer features than it offers must also work with them.
pub(crate) fn features_subset_or_refused(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    if !driver.negotiate(VERSION_1)? {
        return Ok(());
    }
    driver.start()?;
    (kind.send_request)(driver)
}

pub(crate) fn features_unknown_bit_refused(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    let offered = driver.offered();
    let unknown = (0..24).rev().map(|bit| 1 << bit).find(|bit| offered & bit == 0);
    let unknown = unknown.ok_or(Stop::Skipped("the device offers every feature"))?;
    // The device agrees to all others, so that it can only refuse this one.
    let known = offered & kind.features;
    if driver.negotiate(VERSION_1 | known | unknown)? {
        let found = driver.status();
        return Err(Failure::Status { expected: ACKNOWLEDGE | DRIVER, found }.into());
    }
    Ok(())
}

pub(crate) fn generation_after_host_change(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    start(driver, kind)?;
    // The generation need not change before the driver reads the configuration (4.1.4.3.1), so the
    // field is read before the generation each time.
    let field = (kind.read_host_field)(driver);
    let before = driver.generation();
    (kind.change_by_host)(driver)?;
    let changed = driver.wait_for(|driver| {
        (kind.read_host_field)(driver) != field && driver.generation() != before
    });
    Ok(require("the generation must change with the configuration", changed, before.into())?)
}

/// 4.2.2 says that a read returns the value that was written last, without the word MUST.
pub(crate) fn queue_ready_reads_back(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    start(driver, kind)?;
    Ok(expect("QueueReady of a queue that is ready", true, driver.is_queue_ready(0))?)
}

pub(crate) fn queue_zero_after_reset(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    start(driver, kind)?;
    driver.reset()?;
    Ok(expect("QueueReady after a reset", false, driver.is_queue_ready(0))?)
}

pub(crate) fn unused_queue_size_zero(driver: &mut Driver<'_>, _: &DeviceType) -> Result {
    Ok(expect("QueueNumMax of a queue that does not exist", 0u32, driver.queue_max(UNUSED_QUEUE))?)
}

pub(crate) fn interrupt_after_answer(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    start(driver, kind)?;
    driver.forget_interrupts()?;
    (kind.send_request)(driver)?;
    let interrupts = driver.wait_for_interrupt(USED_BUFFER);
    let found = driver.interrupt_status().into();
    Ok(require("the device must interrupt when it has used a buffer", interrupts, found)?)
}

pub(crate) fn interrupt_after_host_change(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    start(driver, kind)?;
    driver.forget_interrupts()?;
    (kind.change_by_host)(driver)?;
    let interrupts = driver.wait_for_interrupt(CONFIG_CHANGE);
    let found = driver.interrupt_status().into();
    Ok(require("the device must interrupt when its configuration changes", interrupts, found)?)
}

/// The register says why the device interrupts until the driver has acknowledged it.
pub(crate) fn interrupt_status(driver: &mut Driver<'_>, kind: &DeviceType) -> Result {
    start(driver, kind)?;
    driver.acknowledge_interrupts();
    (kind.send_request)(driver)?;
    check_interrupt_status(driver, USED_BUFFER)?;
    match (kind.change_by_host)(driver) {
        Ok(()) => Ok(check_interrupt_status(driver, CONFIG_CHANGE)?),
        // Without means to change the configuration, only the first half can be checked.
        Err(Stop::Skipped(_)) => Ok(()),
        Err(failed) => Err(failed),
    }
}

fn check_interrupt_status(
    driver: &mut Driver<'_>,
    cause: u32,
) -> core::result::Result<(), Failure> {
    let is_set = driver.wait_for(|driver| driver.interrupt_status() & cause != 0);
    let found = driver.interrupt_status().into();
    require("InterruptStatus must have the bit of the event", is_set, found)?;
    driver.acknowledge_interrupts();
    expect("InterruptStatus after InterruptACK", 0u32, driver.interrupt_status() & cause)
}

/// Starts a device with all features of its type that it offers: it may refuse to run with fewer.
fn start(driver: &mut Driver<'_>, kind: &DeviceType) -> core::result::Result<(), Failure> {
    let features = driver.offered() & kind.features;
    driver.restart(features)
}
