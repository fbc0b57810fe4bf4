//! Simulates the registers of a memory device with dynamic capacity.

use hotmem_cxl::Registers;
use hotmem_cxl::command::opcode;
use std::collections::{BTreeSet, VecDeque};

/// How the mailbox behaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behaviour {
    /// The number of reads of the control until a command is carried out.
    pub(crate) delay: u32,
    /// The number of accesses after which all registers read as ones.
    pub(crate) gone_after: Option<u64>,
    /// Refuses the next command with this code.
    pub(crate) code: Option<u16>,
    /// Names this length for each answer.
    pub(crate) claimed_len: Option<u32>,
}

const MAILBOX: usize = 0x88;
pub(crate) const MEMORY: usize = 0x8a8;
const PAYLOAD: usize = MAILBOX + 0x20;
pub(crate) const PAYLOAD_LEN: usize = 512;

/// A device with 512 MiB of static memory, and a region of 256 MiB with blocks of 2 MiB after it.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) bytes: Vec<u8>,
    pending: Option<u32>,
    pub(crate) behaviour: Behaviour,
    pub(crate) accesses: u64,
    /// The events: kind, first block and number of blocks in the region, whether more follow.
    events: VecDeque<(u16, u8, u64, u64, bool)>,
    next_handle: u16,
    pub(crate) offered: BTreeSet<u64>,
    pub(crate) accepted: BTreeSet<u64>,
    /// Blocks of a list whose other parts follow.
    partial: Vec<u64>,
    /// The commands that were carried out.
    pub(crate) commands: Vec<u16>,
}

pub(crate) const REGION: u64 = 512 << 20;
pub(crate) const BLOCK: u64 = 2 << 20;
pub(crate) const BLOCKS: u64 = 128;

impl Device {
    pub(crate) fn new() -> Self {
        let mut device = Device {
            bytes: vec![0; 0x1000],
            pending: None,
            behaviour: Behaviour::default(),
            accesses: 0,
            events: VecDeque::new(),
            next_handle: 1,
            offered: BTreeSet::new(),
            accepted: BTreeSet::new(),
            partial: Vec::new(),
            commands: Vec::new(),
        };
        device.put(0, &[0, 0, 1, 1, 3, 0]);
        for (n, id, offset, len) in
            [(1, 1u32, 0x80u32, 8u32), (2, 2, 0x88, 0x220), (3, 0x4000, 0x8a8, 8)]
        {
            device.put(0x10 * n, &[id, offset, len].map(u32::to_le_bytes).concat());
        }
        device.put(MAILBOX, &[9]);
        device.put(MEMORY, &[0b1_0100]);
        device
    }

    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes[at..at + N].try_into().unwrap()
    }

    /// Reports an event: 0 offers blocks of the region, 1 asks for them, 2 takes them.
    pub(crate) fn report(&mut self, kind: u8, first: u64, count: u64, more: bool) {
        match kind {
            0 => self.offered.extend(first..first + count),
            2 => self.accepted.retain(|block| !(first..first + count).contains(block)),
            _ => {}
        }
        self.events.push_back((self.next_handle, kind, first, count, more));
        self.next_handle += 1;
        self.bytes[0x80] |= 1 << 4;
    }

    /// Returns the blocks of an extent in a payload.
    fn blocks(&self, at: usize) -> Option<std::ops::Range<u64>> {
        let (start, len) = (u64::from_le_bytes(self.get(at)), u64::from_le_bytes(self.get(at + 8)));
        let first = start.checked_sub(REGION)? / BLOCK;
        (start % BLOCK == 0 && len % BLOCK == 0 && len > 0).then_some(first..first + len / BLOCK)
    }

    /// Carries out the command. Returns the answer or a code.
    fn carry_out(&mut self, opcode: u16, len: usize) -> Result<Vec<u8>, u16> {
        const INVALID: u16 = 2;
        let payload = self.bytes[PAYLOAD..PAYLOAD + len].to_vec();
        match opcode {
            opcode::IDENTIFY => {
                let mut answer = vec![0; 0x45];
                answer[0x10] = 2;
                answer[0x18] = 2;
                Ok(answer)
            }
            opcode::GET_DYNAMIC_CONFIG => {
                let mut answer = vec![1, 1, 0, 0, 0, 0, 0, 0];
                answer.extend([REGION, 1, BLOCKS * BLOCK, BLOCK, 0].map(u64::to_le_bytes).concat());
                Ok(answer)
            }
            opcode::GET_EVENTS => {
                let events: Vec<_> = self.events.iter().take(3).copied().collect();
                let mut answer = vec![0; 0x20];
                answer[0] = u8::from(self.events.len() > 3) << 1;
                answer[0x14] = u8::try_from(events.len()).unwrap();
                for (handle, kind, first, count, more) in events {
                    let mut raw = [0; 0x80];
                    raw[..16].copy_from_slice(&[
                        0xca, 0x95, 0xaf, 0xa7, 0xf1, 0x83, 0x40, 0x18, 0x8c, 0x2f, 0x95, 0x26,
                        0x8e, 0x10, 0x1a, 0x2a,
                    ]);
                    raw[0x14..0x16].copy_from_slice(&handle.to_le_bytes());
                    raw[0x30] = kind;
                    raw[0x35] = u8::from(more);
                    raw[0x38..0x40].copy_from_slice(&(REGION + first * BLOCK).to_le_bytes());
                    raw[0x40..0x48].copy_from_slice(&(count * BLOCK).to_le_bytes());
                    answer.extend(raw);
                }
                Ok(answer)
            }
            opcode::CLEAR_EVENTS => {
                let handle = u16::from_le_bytes([payload[6], payload[7]]);
                if self.events.front().is_none_or(|&(first, ..)| first != handle) {
                    return Err(INVALID);
                }
                self.events.pop_front();
                self.bytes[0x80] = u8::from(!self.events.is_empty()) << 4;
                Ok(Vec::new())
            }
            opcode::GET_EXTENTS => {
                let mut answer = vec![0; 0x10];
                answer[0] = 1;
                answer[4] = u8::try_from(self.accepted.len()).unwrap();
                answer.extend([0; 40]);
                Ok(answer)
            }
            opcode::ADD_RESPONSE | opcode::RELEASE => {
                let count = usize::from(payload[0]);
                assert_eq!(len, 8 + 24 * count);
                for n in 0..count {
                    let blocks = self.blocks(PAYLOAD + 8 + 24 * n).ok_or(INVALID)?;
                    self.partial.extend(blocks);
                }
                if payload[4] & 1 != 0 {
                    return Ok(Vec::new());
                }
                let all = std::mem::take(&mut self.partial);
                let from = if opcode == opcode::RELEASE { &self.accepted } else { &self.offered };
                if !all.iter().all(|block| from.contains(block)) {
                    return Err(INVALID);
                }
                if opcode == opcode::RELEASE {
                    self.accepted.retain(|block| !all.contains(block));
                } else {
                    self.accepted.extend(all);
                    self.offered.clear();
                }
                Ok(Vec::new())
            }
            _ => Err(3),
        }
    }

    fn finish(&mut self) {
        let command = u64::from_le_bytes(self.get(MAILBOX + 8));
        let [a, b, ..] = command.to_le_bytes();
        let opcode = u16::from_le_bytes([a, b]);
        let len = usize::try_from(command >> 16 & 0x1f_ffff).unwrap();
        let result = match self.behaviour.code.take() {
            Some(code) => Err(code),
            None => self.carry_out(opcode, len),
        };
        self.commands.push(opcode);
        let (code, answer) = match result {
            Ok(answer) => (0, answer),
            Err(code) => (code, Vec::new()),
        };
        self.put(PAYLOAD, &answer);
        let len = self.behaviour.claimed_len.unwrap_or(u32::try_from(answer.len()).unwrap());
        let command = u64::from(opcode) | u64::from(len) << 16;
        self.put(MAILBOX + 8, &command.to_le_bytes());
        self.put(MAILBOX + 0x10, &(u64::from(code) << 32).to_le_bytes());
        self.bytes[MAILBOX + 4] &= !1;
    }

    fn is_gone(&mut self) -> bool {
        self.accesses += 1;
        self.behaviour.gone_after.is_some_and(|after| self.accesses > after)
    }
}

impl Registers for Device {
    fn size(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap()
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        if self.is_gone() {
            return u32::MAX;
        }
        if offset as usize == MAILBOX + 4 {
            match &mut self.pending {
                Some(reads @ 1..) => *reads -= 1,
                Some(0) => {
                    self.pending = None;
                    self.finish();
                }
                None => {}
            }
        }
        u32::from_le_bytes(self.get(offset as usize))
    }

    fn write_u32(&mut self, offset: u32, value: u32) {
        if self.is_gone() {
            return;
        }
        assert_eq!(offset as usize, MAILBOX + 4, "only the control is written");
        self.put(offset as usize, &value.to_le_bytes());
        if value & 1 != 0 {
            self.pending = Some(self.behaviour.delay);
        }
    }

    fn read_u64(&mut self, offset: u32) -> u64 {
        if self.is_gone() { u64::MAX } else { u64::from_le_bytes(self.get(offset as usize)) }
    }

    fn write_u64(&mut self, offset: u32, value: u64) {
        if self.is_gone() {
            return;
        }
        assert_eq!(self.bytes[MAILBOX + 4] & 1, 0, "the mailbox is written while it is busy");
        self.put(offset as usize, &value.to_le_bytes());
    }
}
