#![doc = include_str!("../README.md")]
//!
//! # In detail
//!
//! Implements drivers for virtio-mem and virtio-balloon: state machines without I/O, and virtqueues
//! to run them.
//!
//! [`mem::Driver`] decides, and the kernel does the I/O. Each step takes the time, a snapshot of
//! the device's configuration and, if the device has answered, its answer. The step returns the
//! request to put on the queue next. The kernel implements plugging and unplugging in the trait
//! [`mem::Memory`]. So a kernel can use the driver with its own virtio stack, and unit tests can
//! simulate hostile devices.
//!
//! With the feature `virtio-drivers`, `mem::Device` and `balloon::Device` run the drivers on a
//! transport of the crate virtio-drivers, over [`queue::SplitQueue`]. The module `pci` finds
//! devices and contains such a transport.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![no_std]
#![deny(unsafe_code)]

#[forbid(unsafe_code)]
mod backoff;
pub mod balloon;
mod barrier;
pub mod dma;
#[cfg(feature = "virtio-drivers")]
#[forbid(unsafe_code)]
mod handshake;
#[forbid(unsafe_code)]
mod hull;
pub mod mem;
#[forbid(unsafe_code)]
mod missing_frames;
#[cfg(feature = "virtio-drivers")]
pub mod pci;
pub mod queue;

#[cfg(feature = "virtio-drivers")]
pub use handshake::HandshakeError;
pub use missing_frames::missing_frames;
