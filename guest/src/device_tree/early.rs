//! Finds the devices by which the kernel reports errors, and ends the machine, before it knows whether
//! the whole tree is valid.

use super::error::TreeError;
use super::node::{Node, Range, walk};

/// The size of the page in which the kernel maps a console before it has an address space.
const PAGE: u64 = 2 << 20;
/// The end of the addresses that an entry of a page table can have on every architecture.
const ADDRESS_END: u64 = 1 << 48;
/// The offset after the last register of a PL011 that the kernel uses.
const PL011_END: u64 = 0x1c;
/// The number of the last register of a 16550 that the kernel uses.
const LAST_16550_REGISTER: u64 = 5;
/// The largest distance of the registers of a 16550, as the exponent of a power of two.
const MAX_SHIFT: u32 = 5;

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
            let range = node.first_range()?;
            let is_valid = can_be_mapped(range, PL011_END, 4);
            self.pl011 = Some(is_valid.then_some(range.start).ok_or(node.malformed("reg"))?);
        }
        if self.ns16550.is_none() && (node.is_device("ns16550a")? || node.is_device("ns16550")?) {
            self.ns16550 = Some(Ns16550::read(node)?);
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

impl Ns16550 {
    fn read<'t>(node: &Node<'t>) -> Result<Self, TreeError<'t>> {
        let shift = node.number("reg-shift")?.unwrap_or(0);
        let width = node.number("reg-io-width")?.unwrap_or(1);
        if shift > MAX_SHIFT {
            return Err(node.malformed("reg-shift"));
        }
        if !matches!(width, 1 | 4) || width > 1 << shift {
            return Err(node.malformed("reg-io-width"));
        }
        let range = node.first_range()?;
        let offset = u64::from(node.number("reg-offset")?.unwrap_or(0));
        let end = (LAST_16550_REGISTER << shift) + u64::from(width);
        let registers = range.start.checked_add(offset).zip(range.len.checked_sub(offset));
        let registers = registers.map(|(start, len)| Range { start, len });
        match registers.filter(|registers| can_be_mapped(*registers, end, width.into())) {
            Some(Range { start: address, .. }) => Ok(Ns16550 { address, shift, width }),
            None => Err(node.malformed("reg")),
        }
    }
}

/// Returns whether the first `len` bytes lie in the registers and in one page, and are aligned.
fn can_be_mapped(registers: Range, len: u64, alignment: u64) -> bool {
    let Range { start, len: available } = registers;
    let has_room = len <= available && start % PAGE + len <= PAGE;
    has_room && start < ADDRESS_END && start.is_multiple_of(alignment)
}
