#![cfg_attr(any(not(doctest), feature = "model"), doc = include_str!("../README.md"))]
//!
//! # In detail
//!
//! Checks virtio-mem and virtio-balloon devices against the VIRTIO specification, point by point, at
//! their registers.
//!
//! The author of a VMM implements three small traits for a device: [`Registers`], [`GuestMemory`] and
//! [`Host`]. [`MEMORY_POINTS`] and [`BALLOON_POINTS`] are what such devices must do. Each [`Point`] has
//! a name and names its section of VIRTIO 1.3. It gets a new device, and drives it with a split
//! queue of its own that hides nothing. After its steps, the suite checks that the device has
//! answered no more than it was asked, has written nothing outside of its buffers, and agrees with a
//! model about its configuration and the state of each block.
//!
//! The crate is `no_std` and uses no heap, so that a guest can check the device of the VMM that it
//! runs on: [`Point::check`]. With the feature `std`, the module `runner` runs all points in a process,
//! each on a thread with a time limit. With the feature `model`, the module `model` is a device that
//! passes all points, and one deviation for each point, by which the suite itself is tested.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![forbid(unsafe_code)]

mod balloon;
mod buffers;
mod device;
mod device_type;
mod driver;
mod failure;
mod hash;
mod mem;
#[cfg(feature = "model")]
pub mod model;
mod point;
mod points;
mod registers;
mod ring;
#[cfg(feature = "std")]
pub mod runner;
mod tap;
mod transport;

pub use device::{Device, GuestMemory, Host, Inaccessible, Registers, SCRATCH_BYTES, Unsupported};
pub use driver::Clock;
pub use failure::Failure;
pub use point::{Outcome, Point, Requirement};
pub use points::{BALLOON_POINTS, MEMORY_POINTS};
pub use tap::TapLines;
