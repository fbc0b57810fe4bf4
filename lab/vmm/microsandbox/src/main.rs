//! Boots a kernel on the VMM of microsandbox, with a serial console, a virtio-mem device and maybe a
//! balloon.
//!
//! Standard output is the serial console. Standard input is a socket, on which the process answers the
//! commands of QEMU's monitor that the lab uses, so that the lab drives this VMM as it drives QEMU.

mod machine;
mod monitor;

use anyhow::{Context, Result};
use clap::Parser;
use machine::Machine;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

fn main() -> Result<()> {
    let machine = Machine::parse();
    let stdin = std::io::stdin();
    let socket = stdin.as_fd().try_clone_to_owned().context("standard input")?;
    let mut vm = machine.build()?;
    monitor::serve_on_a_thread(UnixStream::from(socket), vm.memory_device.clone());
    vm.run()
}
