//! Drivers for virtio-mem and virtio-balloon: state machines without I/O, and virtqueues to run
//! them.
//!
//! [`mem::Driver`] decides, and the kernel does the I/O. Each step takes the time, a snapshot of
//! the device's configuration and an answer of the device, if there is one, and returns the request
//! to put on the queue next. The trait [`mem::Memory`] defines what plugging means to the kernel.
//! So a kernel can use the driver with its own virtio stack, and unit tests can simulate hostile
//! devices.
//!
//! With the feature `virtio-drivers`, `mem::Device` and `balloon::Device` run the drivers on a
//! transport of that crate, over [`queue::SplitQueue`]. `pci` is such a transport, and finds devices.
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
#[cfg(feature = "virtio-drivers")]
pub mod pci;
pub mod queue;

#[cfg(feature = "virtio-drivers")]
pub use handshake::HandshakeError;

/// The example in the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
