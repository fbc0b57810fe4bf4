//! The whole road in C's terms: boot, frames, plugging and unplugging, devices, and what misuse is
//! answered with.

mod control;
mod devices;
mod frames;
mod machine;
mod misuse;
