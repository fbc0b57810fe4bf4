//! Simulates a virtio-mem device. The device follows the specification, checks that the driver does
//! so too, and commits the faults that a test has chosen.

use hotmem_virtio::mem::{RawConfig, Request, RequestKind};
use std::collections::VecDeque;

pub(crate) const ACK: u16 = 0;
pub(crate) const NACK: u16 = 1;
pub(crate) const BUSY: u16 = 2;
pub(crate) const ERROR: u16 = 3;
const STATE_PLUGGED: u16 = 0;
const STATE_UNPLUGGED: u16 = 1;
const STATE_MIXED: u16 = 2;

/// A fault that the device commits at its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Does not perform the request, and answers with this response type.
    Refuse(u16),
    /// Performs the request, but answers ERROR.
    ErrorAfterwards,
    /// Performs the request, but answers after this many polls.
    LateAnswer(u32),
    /// Does not perform the request, and answers with these bytes.
    Bytes(&'static [u8]),
    /// Performs the request for the first half of its blocks, and answers ERROR.
    HalfDone,
}

pub(crate) struct Device {
    pub(crate) config: RawConfig,
    /// Whether each block of the region is plugged.
    pub(crate) blocks: Vec<bool>,
    /// The faults of the next requests.
    pub(crate) faults: VecDeque<Fault>,
    /// The fault of every request for which `faults` has none.
    pub(crate) default_fault: Option<Fault>,
    /// A wrong `plugged_size` that the driver reads instead of the correct one.
    pub(crate) claimed_plugged_size: Option<u64>,
    /// The answer to a PLUG that exceeds the requested size. By the specification it is NACK.
    pub(crate) answer_beyond_requested: u16,
    /// The requested size that the driver last read. If the device has lowered the requested size
    /// since then, the driver may still request a PLUG up to the size that it has read.
    pub(crate) requested_seen: u64,
    /// The size in bytes of the parts of the region whose borders no request may cross.
    pub(crate) slot_bytes: Option<u64>,
    /// Whether the usable region is empty after UNPLUG_ALL until the host requests a size.
    pub(crate) unplug_all_empties_usable_region: bool,
    /// The requests that were performed or refused, with their addresses and sizes in bytes.
    pub(crate) requests: Vec<(RequestKind, u64, u64)>,
}

impl Device {
    /// Makes a device without plugged blocks and with a requested size of 0.
    pub(crate) fn new(block_size: u64, addr: u64, region_size: u64) -> Device {
        let config = RawConfig {
            block_size,
            node_id: 0,
            addr,
            region_size,
            usable_region_size: 0,
            plugged_size: 0,
            requested_size: 0,
        };
        Device {
            config,
            blocks: vec![false; (region_size / block_size) as usize],
            faults: VecDeque::new(),
            default_fault: None,
            claimed_plugged_size: None,
            answer_beyond_requested: NACK,
            requested_seen: 0,
            slot_bytes: None,
            unplug_all_empties_usable_region: false,
            requests: Vec::new(),
        }
    }

    /// Changes the requested size. Enlarges the usable region by QEMU's rule.
    pub(crate) fn resize(&mut self, requested: u64) {
        let config = &mut self.config;
        config.requested_size = requested;
        let usable = (requested + (256 << 20)).next_multiple_of(config.block_size);
        config.usable_region_size = config.usable_region_size.max(usable.min(config.region_size));
    }

    /// Plugs a block without a request, as a driver before this one would have done.
    pub(crate) fn preplug(&mut self, block: usize) {
        let end = (block as u64 + 1) * self.config.block_size;
        self.config.usable_region_size = self.config.usable_region_size.max(end);
        self.set_plugged(block..block + 1, true);
    }

    pub(crate) fn set_plugged(&mut self, blocks: std::ops::Range<usize>, plugged: bool) {
        self.blocks[blocks].fill(plugged);
        let count = self.blocks.iter().filter(|&&b| b).count() as u64;
        self.config.plugged_size = count * self.config.block_size;
    }

    /// Returns the configuration, as the driver reads it.
    pub(crate) fn read_config(&mut self) -> RawConfig {
        self.requested_seen = self.config.requested_size;
        let plugged_size = self.claimed_plugged_size.unwrap_or(self.config.plugged_size);
        RawConfig { plugged_size, ..self.config }
    }

    /// Handles a request, and commits the next fault. Returns the answer, and the number of polls
    /// after which the answer arrives.
    pub(crate) fn handle(&mut self, request: &[u8; Request::SIZE]) -> (Vec<u8>, u32) {
        let fault = self.faults.pop_front().or(self.default_fault);
        let (response, state, polls) = match fault {
            Some(Fault::Bytes(bytes)) => return (bytes.to_vec(), 0),
            Some(Fault::Refuse(response)) => (response, 0, 0),
            // UNPLUG_ALL names no blocks, so unplug the first half of all blocks.
            Some(Fault::HalfDone) if request[0] == RequestKind::UnplugAll as u8 => {
                self.set_plugged(0..self.blocks.len() / 2, false);
                (ERROR, 0, 0)
            }
            Some(Fault::HalfDone) => {
                let mut half = *request;
                let blocks = u16::from_le_bytes([half[16], half[17]]) / 2;
                half[16..18].copy_from_slice(&blocks.to_le_bytes());
                if blocks > 0 {
                    self.carry_out(&half);
                }
                (ERROR, 0, 0)
            }
            Some(Fault::ErrorAfterwards) => {
                self.carry_out(request);
                (ERROR, 0, 0)
            }
            Some(Fault::LateAnswer(polls)) => {
                let (response, state) = self.carry_out(request);
                (response, state, polls)
            }
            None => {
                let (response, state) = self.carry_out(request);
                (response, state, 0)
            }
        };
        (answer(response, state).to_vec(), polls)
    }

    /// Performs a request as the specification (5.15.6) requires and QEMU does. Returns the type and
    /// the state of the response.
    fn carry_out(&mut self, bytes: &[u8; Request::SIZE]) -> (u16, u16) {
        let u16_at = |offset: usize| u16::from_le_bytes([bytes[offset], bytes[offset + 1]]);
        let addr = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        let count = u64::from(u16_at(16));
        assert!(
            bytes[2..8].iter().chain(&bytes[18..]).all(|&b| b == 0),
            "the padding of the request is not zero"
        );
        let config = self.config;
        let kind = match u16_at(0) {
            0 => RequestKind::Plug,
            1 => RequestKind::Unplug,
            2 => return self.unplug_all(addr, count),
            3 => RequestKind::State,
            kind => panic!("{kind} is not a request type"),
        };
        let size = count * config.block_size;
        let offset = addr.checked_sub(config.addr).expect("the request begins below the region");
        assert!(count > 0, "the request names no blocks");
        assert_eq!(addr % config.block_size, 0, "the address is not aligned to blocks");
        assert!(
            offset + size <= config.usable_region_size,
            "the request ends beyond the usable region"
        );
        let first = (offset / config.block_size) as usize;
        let blocks = first..first + count as usize;
        let plugged = self.blocks[blocks.clone()].iter().filter(|&&b| b).count() as u64;
        self.requests.push((kind, addr, size));
        let slot = |offset: u64| self.slot_bytes.map_or(0, |bytes| offset / bytes);
        if slot(offset) != slot(offset + size - 1) {
            return (ERROR, 0);
        }
        match kind {
            RequestKind::Plug => {
                assert!(
                    config.plugged_size + size <= self.requested_seen
                        || self.claimed_plugged_size.is_some(),
                    "PLUG exceeds the requested size: {:#x} + {size:#x}",
                    config.plugged_size,
                );
                if config.plugged_size + size > config.requested_size {
                    return (self.answer_beyond_requested, 0);
                }
                if plugged != 0 {
                    assert!(
                        self.claimed_plugged_size.is_some(),
                        "the request plugs plugged blocks"
                    );
                    return (ERROR, 0);
                }
                self.set_plugged(blocks, true);
                (ACK, 0)
            }
            RequestKind::Unplug => {
                assert_eq!(plugged, count, "the request unplugs unplugged blocks");
                self.set_plugged(blocks, false);
                (ACK, 0)
            }
            RequestKind::State if plugged == 0 => (ACK, STATE_UNPLUGGED),
            RequestKind::State if plugged == count => (ACK, STATE_PLUGGED),
            RequestKind::State => (ACK, STATE_MIXED),
            RequestKind::UnplugAll => unreachable!("`unplug_all` has performed UNPLUG_ALL"),
        }
    }

    fn unplug_all(&mut self, addr: u64, count: u64) -> (u16, u16) {
        assert_eq!(
            (addr, count),
            (0, 0),
            "an UNPLUG_ALL request has an address or a number of blocks"
        );
        let config = self.config;
        self.requests.push((RequestKind::UnplugAll, config.addr, config.region_size));
        self.set_plugged(0..self.blocks.len(), false);
        // As in QEMU, the usable region shrinks only when all blocks are unplugged.
        self.config.usable_region_size = 0;
        if !self.unplug_all_empties_usable_region {
            self.resize(config.requested_size);
        }
        (ACK, 0)
    }
}

/// Returns the bytes of a response.
pub(crate) fn answer(response: u16, state: u16) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&response.to_le_bytes());
    bytes[8..].copy_from_slice(&state.to_le_bytes());
    bytes
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bits: String = self.blocks.iter().map(|&b| if b { '#' } else { '.' }).collect();
        write!(f, "{:x?} {bits}", self.config)
    }
}
