//! Implements the device's side of a split virtqueue (2.7).

use super::ram::Ram;

/// The number of descriptors that a queue can have.
pub(super) const MAX_SIZE: u16 = 128;

/// A queue as the driver has set it up.
#[derive(Clone, Copy, Default)]
pub(super) struct Queue {
    pub(super) size: u16,
    pub(super) is_ready: bool,
    /// The addresses of the descriptors, the available ring and the used ring.
    pub(super) areas: [u64; 3],
    next_available: u16,
    used_index: u16,
}

/// A chain of buffers that the driver has made available.
pub(super) struct Chain {
    pub(super) head: u16,
    pub(super) readable: Vec<Buffer>,
    pub(super) writable: Vec<Buffer>,
}

/// What a device does with a chain.
pub(super) enum Answer {
    /// It gives the chain back, with this number of written bytes.
    Used(u32),
    /// It keeps the chain until the host asks for statistics.
    Held,
    /// It loses the chain and all chains behind it.
    LosesBatch,
}

#[derive(Clone, Copy)]
pub(super) struct Buffer {
    pub(super) addr: u64,
    pub(super) len: u32,
}

impl Queue {
    /// Makes the queue ready from its start, or not ready.
    pub(super) fn set_ready(&mut self, is_ready: bool) {
        *self = Queue { is_ready, next_available: 0, used_index: 0, ..*self };
    }

    /// Takes the next chain.
    pub(super) fn take(&mut self, ram: &Ram) -> Option<Chain> {
        let [table, avail, _] = self.areas;
        if !self.is_ready || self.size == 0 || read_u16(ram, avail + 2)? == self.next_available {
            return None;
        }
        let entry = avail + 4 + 2 * u64::from(self.next_available % self.size);
        let head = read_u16(ram, entry)?;
        self.next_available = self.next_available.wrapping_add(1);
        let mut chain = Chain { head, readable: Vec::new(), writable: Vec::new() };
        let mut index = head;
        // A chain has at most as many descriptors as the queue.
        for _ in 0..self.size {
            let mut bytes = [0; 16];
            ram.read(table + 16 * u64::from(index % self.size), &mut bytes).ok()?;
            let [addr_low, addr_high, len, flags_and_next] =
                [0, 4, 8, 12].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i])));
            let addr = u64::from(addr_low) | u64::from(addr_high) << 32;
            let buffers =
                if flags_and_next & 2 == 0 { &mut chain.readable } else { &mut chain.writable };
            buffers.push(Buffer { addr, len });
            if flags_and_next & 1 == 0 {
                break;
            }
            index = u16::from_le_bytes([bytes[14], bytes[15]]);
        }
        Some(chain)
    }

    /// Gives a chain back to the driver.
    pub(super) fn give_back(&mut self, ram: &mut Ram, id: u32, used_len: u32) {
        let entry = self.areas[2] + 4 + 8 * u64::from(self.used_index % self.size.max(1));
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&id.to_le_bytes());
        bytes[4..].copy_from_slice(&used_len.to_le_bytes());
        // Memory that the driver has named wrongly is not written.
        let _ = ram.write(entry, &bytes);
        self.skip(ram, 1);
    }

    /// Returns whether the driver wants to be interrupted when a chain is used (2.7.7).
    pub(super) fn wants_interrupt(&self, ram: &Ram) -> bool {
        read_u16(ram, self.areas[1]) == Some(0)
    }

    /// Adds to the used index.
    pub(super) fn skip(&mut self, ram: &mut Ram, count: u16) {
        self.used_index = self.used_index.wrapping_add(count);
        let _ = ram.write(self.areas[2] + 2, &self.used_index.to_le_bytes());
    }
}

impl Chain {
    /// Returns the contents of the buffers that the device reads.
    pub(super) fn contents(&self, ram: &Ram) -> Vec<u8> {
        self.readable.iter().flat_map(|buffer| buffer.contents(ram)).collect()
    }

    /// Writes to the buffers that the device writes. Returns the number of bytes written.
    pub(super) fn respond(&self, ram: &mut Ram, mut response: &[u8]) -> u32 {
        let mut written = 0;
        for buffer in &self.writable {
            let len = response.len().min(buffer.len as usize);
            let (part, rest) = response.split_at(len);
            if ram.write(buffer.addr, part).is_ok() {
                written += len;
            }
            response = rest;
        }
        u32::try_from(written).unwrap_or(u32::MAX)
    }
}

impl Buffer {
    pub(super) fn contents(self, ram: &Ram) -> Vec<u8> {
        // Pages that are reported are never read, so that buffers are small.
        let mut bytes = vec![0; self.len.min(1 << 16) as usize];
        match ram.read(self.addr, &mut bytes) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }
}

fn read_u16(ram: &Ram, addr: u64) -> Option<u16> {
    let mut bytes = [0; 2];
    ram.read(addr, &mut bytes).ok()?;
    Some(u16::from_le_bytes(bytes))
}
