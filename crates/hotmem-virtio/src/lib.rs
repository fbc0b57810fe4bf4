//! virtio-mem and virtio-balloon as state machines without I/O, and what it takes to run them.
//!
//! [`mem::Driver`] decides; the kernel carries. It gets the time, a snapshot of the device's
//! configuration and, when there is one, the device's answer, and says what to put on the queue
//! next. What "plugging" means to the kernel is behind one trait, [`mem::Memory`]. So a kernel
//! with a virtio stack of its own can use the driver, and a hostile device is an ordinary unit
//! test.
//!
//! With the feature `virtio-drivers`, `mem::Device` runs it on a transport of that crate, over
//! [`queue::SplitQueue`].
#![no_std]
#![deny(unsafe_code)]

#[forbid(unsafe_code)]
mod backoff;
pub mod balloon;
pub mod dma;
#[cfg(feature = "virtio-drivers")]
#[forbid(unsafe_code)]
mod handshake;
pub mod mem;
pub mod queue;

#[cfg(feature = "virtio-drivers")]
pub use handshake::HandshakeError;

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
