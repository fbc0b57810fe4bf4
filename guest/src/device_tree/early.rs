//! Finds the devices by which the kernel reports errors, and ends the machine, before it knows whether
//! the whole tree is valid.

use super::error::TreeError;
use super::node::{Node, walk};

/// The console and the way to end the machine, as far as the tree names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EarlyDevices {
    /// The address of the registers of the first PL011, a serial port.
    pub pl011: Option<u64>,
    /// The first 16550, a serial port.
    pub ns16550: Option<Ns16550>,
    /// How the firmware's power state calls are made (PSCI).
    pub power_calls: Option<PowerCalls>,
}

/// The registers of a 16550.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ns16550 {
    /// The address of the first register.
    pub address: u64,
    /// The distance of the registers, as the exponent of a power of two.
    pub shift: u32,
    /// The number of bytes of an access: 1 or 4.
    pub width: u32,
}

/// The instruction that makes a power state call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PowerCalls {
    /// `hvc`.
    Hvc,
    /// `smc`.
    Smc,
}

impl EarlyDevices {
    /// Finds the devices in the part of the tree before the first error.
    #[must_use]
    pub fn find(blob: &[u64]) -> Self {
        let mut devices = EarlyDevices::default();
        // Whoever reads the whole tree reports the error.
        let _ = walk(blob, &mut |node| devices.read_node(node));
        devices
    }

    fn read_node<'t>(&mut self, node: &Node<'t>) -> Result<(), TreeError<'t>> {
        if self.pl011.is_none() && node.is_device("arm,pl011")? {
            self.pl011 = Some(node.first_range()?.start);
        }
        if self.ns16550.is_none() && (node.is_device("ns16550a")? || node.is_device("ns16550")?) {
            let offset = u64::from(node.number("reg-offset")?.unwrap_or(0));
            let address = node.first_range()?.start.checked_add(offset);
            self.ns16550 = Some(Ns16550 {
                address: address.ok_or(node.malformed("reg-offset"))?,
                shift: node.number("reg-shift")?.unwrap_or(0),
                width: node.number("reg-io-width")?.unwrap_or(1),
            });
        }
        if node.has_string("compatible", "arm,psci-0.2")? {
            self.power_calls = match node.property("method")? {
                Some(b"hvc\0") => Some(PowerCalls::Hvc),
                Some(b"smc\0") => Some(PowerCalls::Smc),
                _ => return Err(node.malformed("method")),
            };
        }
        Ok(())
    }
}
