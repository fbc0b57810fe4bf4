//! virtio-mem as a state machine without I/O.
//!
//! [`mem::Driver`] decides; the kernel carries. It gets the time, a snapshot of the device's
//! configuration and, when there is one, the device's answer, and says what to put on the queue
//! next. What "plugging" means to the kernel is behind one trait, [`mem::Memory`]. So a kernel
//! with a virtio stack of its own can use the driver, and a hostile device is an ordinary unit
//! test.
#![no_std]
#![deny(unsafe_code)]

#[forbid(unsafe_code)]
pub mod mem;
