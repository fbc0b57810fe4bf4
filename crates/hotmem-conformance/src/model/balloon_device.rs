//! Models a balloon (5.5), which zeroes the pages that it gets.

use super::deviation::Deviation;
use super::queue::{Answer, Buffer, Chain};
use super::ram::Ram;
use std::collections::{BTreeMap, BTreeSet};

const PAGE_BYTES: u64 = 4096;

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const STATISTICS: usize = 2;
const HINTS: usize = 3;

/// The offsets of `actual` and `poison_val` in the configuration.
const ACTUAL: usize = 4;
const POISON_VALUE: usize = 12;

/// The features `MUST_TELL_HOST`, `STATS_VQ`, `FREE_PAGE_HINT`, `PAGE_POISON` and `PAGE_REPORTING`,
/// and `DEVICE_INIT_ON_INFLATE`, which is proposed for the specification.
const MUST_TELL_HOST: u64 = 1 << 0;
const STATS_VQ: u64 = 1 << 1;
const FREE_PAGE_HINT: u64 = 1 << 3;
const PAGE_POISON: u64 = 1 << 4;
const PAGE_REPORTING: u64 = 1 << 5;
const DEVICE_INIT_ON_INFLATE: u64 = 1 << 7;

/// The highest tag of a statistic.
const MAX_TAG: u16 = 15;

pub(super) struct BalloonDevice {
    deviation: Option<Deviation>,
    num_pages: u32,
    actual: u32,
    hint_command: u32,
    poison_value: u32,
    accepted: u64,
    /// The command ID of the hints that come next.
    hints_for: u32,
    pub(super) statistics: BTreeMap<u16, u64>,
    /// Pages that lose what is written to them.
    lost_pages: BTreeSet<u64>,
}

impl BalloonDevice {
    pub(super) const ID: u32 = 5;
    pub(super) const FEATURES: u64 = MUST_TELL_HOST
        | STATS_VQ
        | FREE_PAGE_HINT
        | PAGE_POISON
        | PAGE_REPORTING
        | DEVICE_INIT_ON_INFLATE;
    pub(super) const QUEUES: usize = 5;

    pub(super) fn new(deviation: Option<Deviation>) -> BalloonDevice {
        BalloonDevice {
            deviation,
            num_pages: 0,
            actual: 0,
            hint_command: 0,
            poison_value: 0,
            accepted: 0,
            hints_for: 0,
            statistics: BTreeMap::new(),
            lost_pages: BTreeSet::new(),
        }
    }

    pub(super) fn config(&self) -> Vec<u8> {
        let actual = if self.deviates(Deviation::ActualForgotten) { 0 } else { self.actual };
        let fields = [self.num_pages, actual, self.hint_command, self.poison_value];
        fields.iter().flat_map(|field| field.to_le_bytes()).collect()
    }

    /// Returns whether the configuration changes.
    pub(super) fn write_config(&mut self, offset: usize, data: &[u8]) -> bool {
        let Ok(bytes) = data.try_into() else { return false };
        let value = u32::from_le_bytes(bytes);
        let field = match offset {
            0 if self.deviates(Deviation::NumPagesWritable) => &mut self.num_pages,
            ACTUAL => &mut self.actual,
            8 if self.deviates(Deviation::HintCommandWritable) => &mut self.hint_command,
            POISON_VALUE if self.accepted & PAGE_POISON != 0 => &mut self.poison_value,
            _ => return false,
        };
        *field = value;
        true
    }

    pub(super) fn set_num_pages(&mut self, pages: u32) {
        self.num_pages = pages;
    }

    /// Starts a round of hints with a new command ID.
    pub(super) fn start_hints(&mut self) {
        self.hint_command = self.hint_command.max(4) + 1;
    }

    pub(super) fn accept(&mut self, features: u64) {
        self.accepted = features;
    }

    pub(super) fn reset(&mut self) {
        (self.accepted, self.actual, self.poison_value) = (0, 0, 0);
    }

    /// Returns whether the guest's writes to an address are lost.
    pub(super) fn loses(&self, addr: u64) -> bool {
        self.lost_pages.contains(&(addr / PAGE_BYTES))
    }

    /// Carries out the request in a chain.
    pub(super) fn serve(&mut self, queue: usize, chain: &Chain, ram: &mut Ram) -> Answer {
        match queue {
            INFLATE | DEFLATE => self.take_pages(queue == INFLATE, chain, ram),
            STATISTICS => self.take_statistics(chain, ram),
            HINTS => self.take_hints(chain, ram),
            _ => self.take_reports(chain, ram),
        }
    }

    fn take_pages(&mut self, inflates: bool, chain: &Chain, ram: &mut Ram) -> Answer {
        let mut numbers = chain.contents(ram);
        let used_len = if self.deviates(Deviation::UsedLengthOfRead) { numbers.len() } else { 0 };
        if inflates && self.deviates(Deviation::OnlyFirstDescriptor) {
            let first = chain.readable.first().map_or(0, |buffer| buffer.len as usize);
            numbers.truncate(first);
        }
        if inflates && self.deviates(Deviation::DividedNumberLost) {
            let whole = |buffer: &Buffer| {
                let mut bytes = buffer.contents(ram);
                bytes.truncate(bytes.len() / 4 * 4);
                bytes
            };
            numbers = chain.readable.iter().flat_map(whole).collect();
        }
        if inflates && self.deviates(Deviation::Only256Pages) {
            numbers.truncate(4 * 256);
        }
        if inflates && numbers.len() > 4 * 256 && self.deviates(Deviation::LongRequestIgnored) {
            numbers.clear();
        }
        let mut bitmap = vec![0; numbers.len().div_ceil(4 * 8)];
        for (index, number) in numbers.chunks_exact(4).enumerate() {
            let page = u64::from(u32::from_le_bytes([number[0], number[1], number[2], number[3]]));
            if inflates {
                let is_filled = ram.write(page * PAGE_BYTES, &[0; 4096]).is_ok();
                bitmap[index / 8] |= u8::from(is_filled) << (index % 8);
            } else if self.deviates(Deviation::DeflatedNotWritable) {
                self.lost_pages.insert(page);
            }
        }
        // It fills pages with zeroes, which is wrong if the driver wants another value.
        let has_bitmap = self.accepted & DEVICE_INIT_ON_INFLATE != 0 && self.poison_value == 0;
        if inflates && has_bitmap {
            return Answer::Used(chain.respond(ram, &bitmap));
        }
        Answer::Used(u32::try_from(used_len).unwrap_or(u32::MAX))
    }

    fn take_statistics(&mut self, chain: &Chain, ram: &Ram) -> Answer {
        for entry in chain.contents(ram).chunks_exact(10) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            if tag <= MAX_TAG {
                let value = [2, 3, 4, 5, 6, 7, 8, 9].map(|at| entry[at]);
                self.statistics.insert(tag, u64::from_le_bytes(value));
            } else if self.deviates(Deviation::UnknownTagEndsStatistics) {
                break;
            }
        }
        if self.deviates(Deviation::StatisticsNotHeld) { Answer::Used(0) } else { Answer::Held }
    }

    fn take_hints(&mut self, chain: &Chain, ram: &mut Ram) -> Answer {
        if let Ok(command) = chain.contents(ram).try_into() {
            self.hints_for = u32::from_le_bytes(command);
        }
        let is_stale = self.hints_for != self.hint_command;
        if is_stale && self.deviates(Deviation::StaleHintsTaken) {
            chain.writable.iter().for_each(|buffer| discard(*buffer, ram));
        }
        Answer::Used(0)
    }

    fn take_reports(&mut self, chain: &Chain, ram: &mut Ram) -> Answer {
        let limit = if self.deviates(Deviation::Only16Reports) { 16 } else { usize::MAX };
        // Pages that the driver needs with other contents are not taken.
        if self.poison_value == 0 || self.deviates(Deviation::PoisonIgnored) {
            chain.writable.iter().take(limit).for_each(|buffer| discard(*buffer, ram));
        }
        if self.deviates(Deviation::ReportDiscardsReadable) {
            chain.readable.iter().for_each(|buffer| discard(*buffer, ram));
        }
        Answer::Used(0)
    }

    fn deviates(&self, deviation: Deviation) -> bool {
        self.deviation == Some(deviation)
    }
}

fn discard(buffer: Buffer, ram: &mut Ram) {
    ram.fill(buffer.addr, buffer.len.into(), 0);
}
