//! Tests of device registers and of the mailbox, against devices that hang, lie or disappear.

use crate::arbitrary::arbitrary;
use crate::device::{Device, MEMORY, PAYLOAD_LEN};
use hotmem_addr::Bytes;
use hotmem_cxl::command::{Capacity, opcode};
use hotmem_cxl::{
    COMMAND_LIMIT, DeviceError, DeviceRegisters, EventLog, Mailbox, MailboxError, MemoryState,
    READY_LIMIT, Registers,
};
use proptest::prelude::*;
use std::{task::Poll, time::Duration};

/// Sends a command and polls for its answer, every 100 ms.
pub(crate) fn command(
    mailbox: &mut Mailbox,
    registers: &mut impl Registers,
    opcode: u16,
    payload: &[u8],
    answer: &mut [u8],
) -> Result<usize, MailboxError> {
    mailbox.start(registers, opcode, payload, Duration::ZERO)?;
    for n in 0.. {
        let now = Duration::from_millis(100 * n);
        if let Poll::Ready(result) = mailbox.poll(registers, answer, now) {
            return result;
        }
        assert!(now <= COMMAND_LIMIT);
    }
    unreachable!("the loop has no end")
}

fn identify(mailbox: &mut Mailbox, device: &mut Device) -> Result<Capacity, MailboxError> {
    let mut answer = [0; 256];
    let len = command(mailbox, device, opcode::IDENTIFY, &[], &mut answer)?;
    Ok(Capacity::read(&answer[..len]).unwrap())
}

#[test]
fn a_device_is_identified() {
    let mut device = Device::new();
    device.behaviour.delay = 5;
    let (registers, mut mailbox) = DeviceRegisters::find(&mut device).unwrap();
    assert_eq!(mailbox.payload_len(), PAYLOAD_LEN);
    assert_eq!(registers.memory_state(&mut device), Ok(MemoryState::Ready));
    assert_eq!(registers.has_events(&mut device, EventLog::DynamicCapacity), Ok(false));
    device.report(0, 0, 1, false);
    assert_eq!(registers.has_events(&mut device, EventLog::DynamicCapacity), Ok(true));
    assert_eq!(registers.has_events(&mut device, EventLog::Fatal), Ok(false));
    let capacity =
        Capacity { total: Bytes::mib(512), volatile: Bytes::mib(512), persistent: Bytes::ZERO };
    assert_eq!(identify(&mut mailbox, &mut device), Ok(capacity));
    assert_eq!(device.commands, [opcode::IDENTIFY]);
}

#[test]
fn the_state_of_the_memory_is_read() {
    let mut device = Device::new();
    let (registers, _) = DeviceRegisters::find(&mut device).unwrap();
    let cases = [
        (0b1_0000, MemoryState::NotReady),
        (0b0_0100, MemoryState::NotReady),
        (0b1_0100, MemoryState::Ready),
        (0b1_0101, MemoryState::Failed),
        (0b1_0110, MemoryState::Failed),
        (0b1_1000, MemoryState::Failed),
        (0b1_1100, MemoryState::Failed),
    ];
    for (status, state) in cases {
        device.put(MEMORY, &[status]);
        assert_eq!(registers.memory_state(&mut device), Ok(state), "{status:#b}");
    }
}

#[test]
fn a_device_gets_ready_or_the_wait_for_it_ends() {
    let mut device = Device::new();
    let (registers, _) = DeviceRegisters::find(&mut device).unwrap();
    let (since, last) = (Duration::from_secs(9), Duration::from_nanos(1));
    for (status, state) in [(0b1_0100, MemoryState::Ready), (0b1_0110, MemoryState::Failed)] {
        device.put(MEMORY, &[0b1_0000]);
        for now in [since, since + READY_LIMIT - last] {
            assert_eq!(registers.poll_ready(&mut device, since, now), Poll::Pending);
        }
        device.put(MEMORY, &[status]);
        assert_eq!(registers.poll_ready(&mut device, since, since), Poll::Ready(Ok(state)));
    }
    device.put(MEMORY, &[0]);
    let late = registers.poll_ready(&mut device, since, since + READY_LIMIT);
    assert_eq!(late, Poll::Ready(Ok(MemoryState::NotReady)));
    device.put(MEMORY, &[0xff; 8]);
    let gone = registers.poll_ready(&mut device, since, since);
    assert_eq!(gone, Poll::Ready(Err(DeviceError::Gone)));
}

#[test]
fn a_command_that_is_not_answered_ends_in_time_and_a_later_one_succeeds() {
    let mut device = Device::new();
    let (_, mut mailbox) = DeviceRegisters::find(&mut device).unwrap();
    device.behaviour.delay = 40;
    let timed_out = MailboxError::TimedOut { opcode: opcode::IDENTIFY };
    assert_eq!(identify(&mut mailbox, &mut device), Err(timed_out));
    assert_eq!(identify(&mut mailbox, &mut device), Err(MailboxError::Busy));
    let idle = mailbox.poll(&mut device, &mut [], Duration::ZERO);
    assert_eq!(idle, Poll::Ready(Err(MailboxError::Idle)));
    device.behaviour.delay = 0;
    while identify(&mut mailbox, &mut device) == Err(MailboxError::Busy) {}
    assert!(identify(&mut mailbox, &mut device).is_ok());
}

#[test]
fn lengths_of_a_device_are_never_trusted() {
    let mut device = Device::new();
    let (_, mut mailbox) = DeviceRegisters::find(&mut device).unwrap();
    for claimed in [PAYLOAD_LEN + 1, 0x1f_ffff] {
        device.behaviour.claimed_len = u32::try_from(claimed).ok();
        let error = MailboxError::LongAnswer { len: claimed, max: PAYLOAD_LEN };
        assert_eq!(identify(&mut mailbox, &mut device), Err(error));
    }
    device.behaviour.claimed_len = Some(257);
    let error = MailboxError::Buffer { len: 257, room: 256 };
    assert_eq!(identify(&mut mailbox, &mut device), Err(error));
    device.behaviour.claimed_len = None;
    let mut short = [7; 8];
    let error = MailboxError::Buffer { len: 0x45, room: 8 };
    let answer = command(&mut mailbox, &mut device, opcode::IDENTIFY, &[], &mut short);
    assert_eq!((answer, short), (Err(error), [7; 8]));
    let long = [0; PAYLOAD_LEN + 1];
    let error = MailboxError::TooLong { len: PAYLOAD_LEN + 1, max: PAYLOAD_LEN };
    assert_eq!(command(&mut mailbox, &mut device, 1, &long, &mut []), Err(error));
    let refused = MailboxError::Refused { opcode: 0xfeed, code: 3 };
    assert_eq!(command(&mut mailbox, &mut device, 0xfeed, &[], &mut []), Err(refused));
    assert!(identify(&mut mailbox, &mut device).is_ok());
}

#[test]
fn a_device_that_is_removed_at_any_access_of_a_command_is_gone() {
    let run = |gone_after: Option<u64>| {
        let mut device = Device::new();
        device.behaviour.delay = 2;
        let (_, mut mailbox) = DeviceRegisters::find(&mut device).unwrap();
        let found = device.accesses;
        device.behaviour.gone_after = gone_after.map(|after| found + after);
        (identify(&mut mailbox, &mut device), device.accesses - found)
    };
    let (result, accesses) = run(None);
    assert!(result.is_ok());
    for after in 0..accesses {
        assert_eq!(run(Some(after)).0, Err(MailboxError::Gone), "after {after} accesses");
    }
}

#[test]
fn malformed_device_registers_are_refused() {
    let find = |at, bytes: &[u8]| {
        let mut device = Device::new();
        device.put(at, bytes);
        DeviceRegisters::find(&mut device).map(|_| ())
    };
    assert_eq!(find(0, &[0xff; 8]), Err(DeviceError::Gone));
    assert_eq!(find(0, &[1]), Err(DeviceError::Header(0x3_0101_0001)));
    assert_eq!(find(4, &[0, 1]), Err(DeviceError::Beyond { end: 0x1010, size: 0x1000 }));
    assert_eq!(find(4, &[2]), Err(DeviceError::Missing { id: 0x4000 }));
    assert_eq!(find(0x14, &[0x84]), Err(DeviceError::Unaligned { id: 1, offset: 0x84 }));
    let beyond = |end| Err(DeviceError::Beyond { end, size: 0x1000 });
    assert_eq!(find(0x34, &[0, 0x10]), beyond(0x1008));
    assert_eq!(find(0x34, &[0xf8, 0xff, 0xff, 0xff]), beyond(1 << 32));
    assert_eq!(find(0x24, &[0xe8, 0xe]), beyond(0x1008));
    assert_eq!(find(0x88, &[7]), Err(DeviceError::PayloadSize { exponent: 7 }));
    assert_eq!(find(0x88, &[21]), Err(DeviceError::PayloadSize { exponent: 21 }));
    let mut device = Device::new();
    device.put(0x88, &[20]);
    let (_, mailbox) = DeviceRegisters::find(&mut device).unwrap();
    assert_eq!(mailbox.payload_len(), 0x1000 - 0xa8, "limited to the block");
}

/// A device some of whose registers read as something else.
struct Lying {
    device: Device,
    lies: Vec<Option<u64>>,
    next: usize,
}

impl Lying {
    fn lie(&mut self, offset: u32, width: u32) -> Option<u64> {
        assert!(offset.is_multiple_of(width) && offset + width <= self.device.size());
        self.next = (self.next + 1) % self.lies.len();
        self.lies[self.next]
    }
}

impl Registers for Lying {
    fn size(&self) -> u32 {
        self.device.size()
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        let truth = self.device.read_u32(offset);
        self.lie(offset, 4).map_or(truth, |lie| (lie & 0xffff_ffff).try_into().unwrap())
    }

    fn write_u32(&mut self, offset: u32, value: u32) {
        self.lie(offset, 4);
        if offset == 0x8c {
            self.device.write_u32(offset, value);
        }
    }

    fn read_u64(&mut self, offset: u32) -> u64 {
        let truth = self.device.read_u64(offset);
        self.lie(offset, 8).unwrap_or(truth)
    }

    fn write_u64(&mut self, offset: u32, value: u64) {
        self.lie(offset, 8);
        if self.device.bytes[0x8c] & 1 == 0 && (0x88..0x88 + 0x220).contains(&offset) {
            self.device.write_u64(offset, value);
        }
    }
}

proptest! {
    #[test]
    fn a_device_that_lies_now_and_then_is_survived(
        lies in proptest::collection::vec(
            prop_oneof![12 => Just(None), 1 => any::<u64>().prop_map(Some), 1 => (0u64..4096).prop_map(Some)],
            1..64,
        ),
    ) {
        let mut registers = Lying { device: Device::new(), lies, next: 0 };
        if let Ok((device, mut mailbox)) = DeviceRegisters::find(&mut registers) {
            let _ = device.memory_state(&mut registers);
            let _ = device.has_events(&mut registers, EventLog::DynamicCapacity);
            let mut answer = [0; 300];
            for opcode in [opcode::IDENTIFY, opcode::GET_DYNAMIC_CONFIG, opcode::GET_EVENTS] {
                let len = command(&mut mailbox, &mut registers, opcode, &[4; 9], &mut answer);
                if let Ok(len) = len {
                    let _ = Capacity::read(&answer[..len]);
                }
            }
        }
    }

    #[test]
    fn arbitrary_device_registers_neither_panic_nor_lead_beyond_the_block(
        mut registers in arbitrary(), small: u16,
    ) {
        if let Ok((device, mut mailbox)) = DeviceRegisters::find(&mut registers) {
            let _ = device.memory_state(&mut registers);
            let _ = device.has_events(&mut registers, EventLog::DynamicCapacity);
            let mut answer = [0; 512];
            for _ in 0..4 {
                let _ = command(&mut mailbox, &mut registers, 1, &[1; 100], &mut answer);
            }
            // The kernel may pass other registers than those that it has found.
            registers.size = small.into();
            let _ = device.memory_state(&mut registers);
            let _ = command(&mut mailbox, &mut registers, 1, &[1; 100], &mut answer);
        }
    }
}
