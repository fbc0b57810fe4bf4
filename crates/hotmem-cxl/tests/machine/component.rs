//! Simulates component registers with HDM decoders.

use hotmem_cxl::Registers;

/// How a component behaves.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    /// How often the control register of a decoder must be read until the decoder is committed or freed.
    pub(crate) delay: u32,
    /// Sets the error bit instead of committing.
    pub(crate) refuses: bool,
    /// Bits of base and size that cannot be written.
    pub(crate) lost_bits: u32,
    /// Whether the component decodes only if the global control enables it. The bit is 0 in a bridge,
    /// whatever is written.
    pub(crate) has_enable: bool,
    /// The number of accesses after which all registers read as ones.
    pub(crate) gone_after: Option<u64>,
}

/// Component registers of 64 KiB: the header, one other capability, and the decoders.
#[derive(Clone, Debug)]
pub(crate) struct Component {
    words: Vec<u32>,
    count: u32,
    /// The decoder that changes, the reads until it does, and whether it is then committed.
    pending: Option<(u32, u32, bool)>,
    pub(crate) behaviour: Behaviour,
    pub(crate) accesses: u64,
}

const HDM: u32 = 0x1200;
pub(crate) const COMMITTED: u32 = 1 << 10;
const COMMIT: u32 = 1 << 9;
const ERROR: u32 = 1 << 11;
const ENABLE: u32 = 1 << 1;

impl Component {
    /// `encoded_count` and `targets` as in the capability. Addresses alternate by bits 8 to 14.
    pub(crate) fn new(encoded_count: u32, targets: u32) -> Self {
        let count = [1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32][encoded_count as usize];
        let mut words = vec![0; 0x4000];
        words[0x400] = 0x0200_0001;
        words[0x401] = 2 | 0x100 << 20;
        words[0x402] = 5 | 0x200 << 20;
        words[HDM as usize / 4] = encoded_count | targets << 4 | 3 << 8;
        let behaviour = Behaviour {
            delay: 1,
            refuses: false,
            lost_bits: 0,
            has_enable: true,
            gone_after: None,
        };
        Component { words, count, pending: None, behaviour, accesses: 0 }
    }

    /// The registers of a host bridge.
    pub(crate) fn bridge(encoded_count: u32, targets: u32) -> Self {
        let mut bridge = Component::new(encoded_count, targets);
        bridge.behaviour.has_enable = false;
        bridge
    }

    pub(crate) fn word(&mut self, offset: u32) -> &mut u32 {
        &mut self.words[offset as usize / 4]
    }

    pub(crate) fn control(&mut self, n: u32) -> &mut u32 {
        self.word(HDM + 0x20 + 0x20 * n)
    }

    /// Returns the base, the size, the control and the destination of a committed decoder, as they are
    /// in the registers.
    pub(crate) fn committed(&self, n: u32) -> Option<[u64; 4]> {
        let at = (HDM as usize + 0x10) / 4 + 8 * n as usize;
        let wide =
            |n: usize| u64::from(self.words[at + n]) | u64::from(self.words[at + n + 1]) << 32;
        let control = self.words[at + 4];
        let is_enabled =
            !self.behaviour.has_enable || self.words[HDM as usize / 4 + 1] & ENABLE != 0;
        (control & COMMITTED != 0 && is_enabled)
            .then(|| [wide(0), wide(2), control.into(), wide(5)])
    }

    pub(crate) fn count_committed(&self) -> usize {
        (0..self.count).filter(|&n| self.committed(n).is_some()).count()
    }

    fn is_gone(&mut self) -> bool {
        self.accesses += 1;
        self.behaviour.gone_after.is_some_and(|after| self.accesses > after)
    }

    /// Returns the decoder and the register in it.
    fn decoder_of(&self, offset: u32) -> Option<(u32, u32)> {
        let relative = offset.checked_sub(HDM + 0x10)?;
        (relative / 0x20 < self.count).then_some((relative / 0x20, relative % 0x20))
    }

    fn proceed(&mut self, n: u32) {
        match &mut self.pending {
            Some((pending, reads @ 1.., _)) if *pending == n => *reads -= 1,
            &mut Some((pending, 0, committed)) if pending == n => {
                self.pending = None;
                let bit = match (committed, self.behaviour.refuses) {
                    (true, true) => ERROR,
                    (true, false) => COMMITTED,
                    (false, _) => 0,
                };
                let control = self.control(n);
                *control = *control & !(COMMITTED | ERROR) | bit;
            }
            _ => {}
        }
    }
}

impl Registers for Component {
    fn size(&self) -> u32 {
        0x1_0000
    }

    fn read_u32(&mut self, offset: u32) -> u32 {
        if self.is_gone() {
            return u32::MAX;
        }
        if let Some((n, 0x10)) = self.decoder_of(offset) {
            self.proceed(n);
        }
        *self.word(offset)
    }

    fn write_u32(&mut self, offset: u32, value: u32) {
        if self.is_gone() {
            return;
        }
        match self.decoder_of(offset) {
            Some((n, 0x10)) => {
                let old = *self.control(n);
                *self.control(n) = value & !(COMMITTED | ERROR) | old & COMMITTED;
                let changes = (value & COMMIT != 0) != (old & COMMITTED != 0);
                self.pending = changes.then_some((n, self.behaviour.delay, value & COMMIT != 0));
            }
            Some((_, 0 | 8)) => {
                *self.word(offset) = value & 0xf000_0000 & !self.behaviour.lost_bits
            }
            _ if offset == HDM + 4 && !self.behaviour.has_enable => {
                *self.word(offset) = value & !ENABLE
            }
            _ => *self.word(offset) = value,
        }
    }

    fn read_u64(&mut self, _: u32) -> u64 {
        panic!("component registers are accessed in 4 bytes")
    }

    fn write_u64(&mut self, _: u32, _: u64) {
        panic!("component registers are accessed in 4 bytes")
    }
}
