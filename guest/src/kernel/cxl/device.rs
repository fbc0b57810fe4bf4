//! A memory device: where it is, its registers, and its capacity.

use super::error::CxlError;
use super::registers::{Block, ExtendedConfig};
use crate::arch::Clock;
use crate::kernel::pci::Buses;
use crate::kernel::progress::WATCHDOG;
use core::ops::Range;
use core::task::Poll;
use core::time::Duration;
use hotmem_cxl::cedt::{Restrictions, Window};
use hotmem_cxl::command::{Capacity, Region, get_dynamic_config, opcode};
use hotmem_cxl::config::{self, BlockKind};
use hotmem_cxl::{
    COMPONENT_BYTES, Decoders, DeviceRegisters, Mailbox, MailboxError, MemoryState, Role, plan,
};
use hotmem_guest::cxl::MemoryKind;
use virtio_drivers::transport::pci::bus::DeviceFunction;

/// The size of the device registers that are used.
const DEVICE_BYTES: u32 = 0x1000;
/// The longest answer that the kernel takes.
pub(super) const MAX_ANSWER: usize = 1024;
/// The return codes of a command that a device does not have, or not by this mailbox (Table 8-34).
const UNSUPPORTED: [u16; 2] = [3, 0x15];

/// A memory device.
pub(super) struct MemoryDevice {
    /// The number of the bridge above the device. QEMU's bridges have the numbers of their buses.
    pub(super) bridge: u32,
    port: u8,
    pub(super) component: Block,
    pub(super) decoders: Decoders,
    pub(super) registers: Block,
    pub(super) state: DeviceRegisters,
    mailbox: Mailbox,
    /// The memory to which addresses are routed.
    pub(super) memory: Range<u64>,
    /// What a window must allow for this memory.
    pub(super) kind: Restrictions,
    /// The region of dynamic capacity, if the memory is that.
    pub(super) dynamic: Option<Region>,
}

impl MemoryDevice {
    /// Opens a device whose BARs are mapped, and lets it answer to addresses of memory.
    #[inline(never)]
    pub(super) fn open(
        buses: &mut Buses,
        function: DeviceFunction,
        clock: &Clock,
    ) -> Result<Self, CxlError> {
        let mut config = config_of(buses, function)?;
        let port = buses.bridge_to(function.bus).ok_or(CxlError::NoPort)?;
        let number = config::port_number(&mut config_of(buses, port)?)?.ok_or(CxlError::NoPort)?;
        let mut block = |kind, len: u32| -> Result<Block, CxlError> {
            let block = config::locate(&mut config, kind)?.ok_or(CxlError::NoRegisters(kind))?;
            let offset = u32::try_from(block.offset).map_err(|_| CxlError::NoRegisters(kind))?;
            let start = buses.registers(function, block.bar, offset, len.into());
            // SAFETY: `registers` returns registers of a mapped BAR.
            start.map(|start| unsafe { Block::new(start, len) }).ok_or(CxlError::NoRegisters(kind))
        };
        let component_len = u32::try_from(COMPONENT_BYTES).unwrap_or(u32::MAX);
        let mut component = block(BlockKind::Component, component_len)?;
        let mut registers = block(BlockKind::Device, DEVICE_BYTES)?;
        let decoders = Decoders::find(&mut component, Role::Device)?.ok_or(CxlError::NoDecoders)?;
        let (state, mailbox) = DeviceRegisters::find(&mut registers)?;
        wait_until_ready(&state, &mut registers, clock)?;
        if !decoders.is_enabled(&mut component)? && config::uses_ranges(&mut config)? {
            return Err(CxlError::UsedByFirmware);
        }
        decoders.enable(&mut component)?;
        config::set_memory_enabled(&mut config, true)?;
        let mut device = MemoryDevice {
            bridge: port.bus.into(),
            port: number,
            component,
            decoders,
            registers,
            state,
            mailbox,
            memory: 0..0,
            kind: Restrictions::VOLATILE,
            dynamic: None,
        };
        device.read_capacity(clock)?;
        Ok(device)
    }

    /// Reads which memory the device has: volatile memory, else persistent memory, else the first
    /// region of dynamic capacity.
    #[inline(never)]
    fn read_capacity(&mut self, clock: &Clock) -> Result<(), CxlError> {
        let mut answer = [0; MAX_ANSWER];
        let len = self.command(opcode::IDENTIFY, &[], &mut answer, clock)?;
        let mut capacity = Capacity::read(&answer[..len])?;
        if capacity.has_variable_part() {
            match self.command(opcode::GET_PARTITION, &[], &mut answer, clock) {
                Ok(len) => capacity = capacity.with_partition(&answer[..len])?,
                Err(MailboxError::Refused { code, .. }) if UNSUPPORTED.contains(&code) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Capacity { total, volatile, persistent } = capacity;
        if volatile.0 > 0 {
            self.memory = 0..volatile.0;
            return Ok(());
        }
        if persistent.0 > 0 {
            self.memory = total.0 - persistent.0..total.0;
            self.kind = Restrictions::PERSISTENT;
            return Ok(());
        }
        let payload = get_dynamic_config(0, 1);
        match self.command(opcode::GET_DYNAMIC_CONFIG, &payload, &mut answer, clock) {
            Ok(len) => {
                let (regions, _) = Region::read_all(&answer[..len])?;
                self.dynamic = regions[0];
            }
            Err(MailboxError::Refused { code, .. }) if UNSUPPORTED.contains(&code) => {}
            Err(error) => return Err(error.into()),
        }
        let region = self.dynamic.ok_or(CxlError::NoMemory)?;
        // `Region::read_all` has checked the end.
        self.memory = region.start..region.start + region.decode_len;
        Ok(())
    }

    /// Sends a command and waits for the answer. Returns its length.
    pub(super) fn command(
        &mut self,
        opcode: u16,
        payload: &[u8],
        answer: &mut [u8],
        clock: &Clock,
    ) -> Result<usize, MailboxError> {
        let now = || Duration::from_micros(clock.now_us());
        self.mailbox.start(&mut self.registers, opcode, payload, now())?;
        loop {
            // The mailbox has a time limit of its own.
            WATCHDOG.progress();
            if let Poll::Ready(len) = self.mailbox.poll(&mut self.registers, answer, now()) {
                return len;
            }
        }
    }

    /// Returns the device as the planner needs it.
    pub(super) fn for_plan(&mut self) -> Result<plan::Device, CxlError> {
        let decoders = self.decoders.occupancy(&mut self.component)?;
        let memory = self.memory.clone();
        Ok(plan::Device { bridge: self.bridge, port: self.port, decoders, memory })
    }

    /// Returns the length of the longest payload.
    pub(super) fn payload_len(&self) -> usize {
        self.mailbox.payload_len()
    }

    /// Returns what the memory is.
    pub(super) fn memory_kind(&self) -> MemoryKind {
        match self.dynamic {
            Some(_) => MemoryKind::Dynamic,
            None if self.kind == Restrictions::VOLATILE => MemoryKind::Volatile,
            None => MemoryKind::Persistent,
        }
    }

    /// Returns whether memory of this kind may be mapped in a window.
    pub(super) fn is_allowed_in(&self, window: &Window) -> bool {
        let allowed = window.restrictions;
        allowed.contains(self.kind) && !allowed.contains(Restrictions::FIXED)
    }

    /// Returns the name of the memory's kind.
    pub(super) fn kind_name(&self) -> &'static str {
        match self.memory_kind() {
            MemoryKind::Dynamic => "dynamic",
            MemoryKind::Volatile => "volatile",
            MemoryKind::Persistent => "persistent",
        }
    }
}

/// Waits until the memory can be used and the mailbox takes commands.
fn wait_until_ready(
    state: &DeviceRegisters,
    registers: &mut Block,
    clock: &Clock,
) -> Result<(), CxlError> {
    let now = || Duration::from_micros(clock.now_us());
    let since = now();
    loop {
        // The wait has a time limit of its own.
        WATCHDOG.progress();
        match state.poll_ready(registers, since, now()) {
            Poll::Pending => {}
            Poll::Ready(Ok(MemoryState::Ready)) => return Ok(()),
            Poll::Ready(Ok(MemoryState::Failed)) => return Err(CxlError::Failed),
            Poll::Ready(Ok(MemoryState::NotReady)) => return Err(CxlError::NotReady),
            Poll::Ready(Err(error)) => return Err(error.into()),
        }
    }
}

fn config_of(buses: &Buses, function: DeviceFunction) -> Result<ExtendedConfig, CxlError> {
    let base = buses.config.extended(function).ok_or(CxlError::NoExtendedConfig)?;
    // SAFETY: `extended` returns a mapped configuration space.
    Ok(unsafe { ExtendedConfig::new(base) })
}
