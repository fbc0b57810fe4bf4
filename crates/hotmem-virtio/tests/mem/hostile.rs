//! Tests the driver with a device that behaves arbitrarily. The fuzz target uses this file.

use crate::memory::{PreparationFailure, TestMemory, Unit};
use core::time::Duration;
use hotmem_virtio::mem::{
    Driver, Features, Leftover, Obstacle, RawConfig, Reason, RequestKind, Step,
};

/// Simulates a device, a memory manager and a clock, whose behaviour these bytes determine. Checks all
/// guarantees of the driver.
pub(crate) fn run_script(script: &[u8]) {
    let mut script = NumberReader(script);
    let mut config = script.config();
    let features = Features::from_bits_truncate(script.number());
    let Ok(mut driver) = Driver::new(&config, features) else { return };
    if script.byte() % 2 == 1 {
        driver.set_leftover(Leftover::UnplugAll);
    }
    let (managed, unit_frames) = (driver.config().managed(), driver.config().unit_frames());
    if managed.frames() / unit_frames > 4096 {
        return;
    }
    let mut memory = TestMemory::new(managed, unit_frames);
    let mut now = Duration::ZERO;
    // Whether `plugged_size` will agree with the answer to the outstanding request.
    let mut outstanding = None;
    let mut failed = None;
    let mut working_steps = 0;
    while !script.is_over() {
        match script.byte() % 16 {
            0 => script.corrupt(&mut config),
            1..4 => {
                // Set a valid requested size, and a usable region for it.
                let blocks = config.region_size / config.block_size.max(1);
                config.requested_size =
                    (script.number() % blocks.saturating_add(1)).wrapping_mul(config.block_size);
                config.usable_region_size = config.region_size;
            }
            4 => now = Duration::from_millis(script.number() >> 20),
            5 => memory.next_failures.push_back(script.preparation_failure()),
            6 => {
                let units = memory.pinned_units.len();
                memory.pinned_units[script.number() as usize % units] ^= true;
            }
            7 => config.plugged_size = driver.plugged().0,
            _ => {}
        }
        now += Duration::from_millis(script.byte().into());
        let answer = match outstanding {
            Some(_) => script.answer(),
            None if script.byte() == 0 => Some(script.answer().unwrap_or_default()),
            None => None,
        };
        if answer.is_some() && outstanding.take() == Some(true) {
            // In most cases, `plugged_size` agrees with the device's answers.
            config.plugged_size = driver.plugged().0;
        }
        let step = driver.step(now, &config, answer.as_deref(), &mut memory);
        working_steps = if step == Step::Working { working_steps + 1 } else { 0 };
        assert!(
            working_steps <= 3 * memory.units.len() + 10,
            "the driver does not wait: {driver:?}"
        );
        assert_eq!(driver.plugged().0, plugged_bytes(&memory, unit_frames));
        match step {
            Step::Ready(Ok(request)) => {
                assert_eq!(failed, None, "the driver sends a request to a failed device");
                assert_eq!(outstanding, None, "the driver sends a second request");
                outstanding = Some(script.byte() < 192);
                let range = request.range();
                if request.kind() == RequestKind::UnplugAll {
                    assert!(memory.all_are(managed, Unit::Absent));
                    continue;
                }
                assert!(driver.config().region().covers(range));
                assert!(driver.config().usable().covers(range));
                let blocks = range.bytes().0 / config.block_size;
                assert!((1..=65_535).contains(&blocks));
                assert_eq!(range.start().phys_addr() % config.block_size, 0);
                let is_whole_units = managed.covers(range) && range.is_aligned(unit_frames);
                match request.kind() {
                    RequestKind::Plug => assert!(memory.all_are(range, Unit::PreparedToPlug)),
                    RequestKind::Unplug if is_whole_units => assert!(
                        memory.all_are(range, Unit::PreparedToUnplug)
                            || memory.all_are(range, Unit::Absent)
                    ),
                    RequestKind::Unplug | RequestKind::State | RequestKind::UnplugAll => {}
                }
            }
            Step::Pending(until) => assert!(until > now),
            Step::Ready(Err(failure)) => {
                assert!(failed.is_none_or(|first| first == failure));
                failed = Some(failure);
            }
            Step::Working | Step::Idle => {}
        }
    }
}

/// Returns the number of plugged bytes by the memory manager, which must be that of the driver.
fn plugged_bytes(memory: &TestMemory, unit_frames: u64) -> u64 {
    let is_plugged = |u: &&Unit| matches!(u, Unit::Plugged | Unit::PreparedToUnplug);
    memory.units.iter().filter(is_plugged).count() as u64 * unit_frames * 4096
}

/// Reads numbers from bytes. After the last byte, all numbers are 0.
struct NumberReader<'a>(&'a [u8]);

impl NumberReader<'_> {
    fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.byte()))
    }

    /// Returns a configuration, which is valid in most cases.
    fn config(&mut self) -> RawConfig {
        let block_size = 1 << (12 + self.byte() % 20);
        let blocks = 1 + u64::from(self.byte()) * (1 + u64::from(self.byte()));
        let mut size = || u64::from(self.byte()) % (blocks + 1) * block_size;
        let (usable_region_size, plugged_size, requested_size) = (size(), size(), size());
        let mut config = RawConfig {
            block_size,
            node_id: self.byte().into(),
            addr: u64::from(self.byte()) * block_size,
            region_size: blocks * block_size,
            usable_region_size,
            plugged_size,
            requested_size,
        };
        if self.byte() >= 224 {
            self.corrupt(&mut config);
        }
        config
    }

    /// Sets one field to an arbitrary value.
    fn corrupt(&mut self, config: &mut RawConfig) {
        let mut value = self.number();
        let field = self.byte();
        if field >= 16 && config.block_size.is_power_of_two() {
            value &= (u64::MAX.checked_shr(config.region_size.leading_zeros()).unwrap_or(0))
                & !(config.block_size - 1);
        }
        match field % 16 {
            0 => config.block_size = value,
            1 => config.node_id = value as u16,
            2 => config.addr = value,
            3 => config.region_size = value,
            4..8 => config.usable_region_size = value,
            8..12 => config.plugged_size = value,
            _ => config.requested_size = value,
        }
    }

    /// Returns an answer, which is valid in most cases, or `None`.
    fn answer(&mut self) -> Option<Vec<u8>> {
        match self.byte() {
            0..32 => None,
            32..40 => {
                let len = self.byte() % 16;
                Some((0..len).map(|_| self.byte()).collect())
            }
            kind => {
                let kind = if kind < 160 { 0 } else { kind % 4 };
                Some(vec![kind, 0, 0, 0, 0, 0, 0, 0, self.byte() % 3, 0])
            }
        }
    }

    fn preparation_failure(&mut self) -> PreparationFailure {
        match self.byte() % 4 {
            0 => PreparationFailure::Obstacle(Obstacle::Working),
            1 => PreparationFailure::Obstacle(Obstacle::Later(Reason::Other("later"))),
            2 => PreparationFailure::Obstacle(Obstacle::Never(Reason::Other("never"))),
            _ => PreparationFailure::OneUnit,
        }
    }
}

#[cfg(not(fuzzing))]
mod tests {
    use super::run_script;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::case_count::cases(2000))]

        #[test]
        fn the_driver_keeps_its_guarantees_with_any_device(script in vec(any::<u8>(), 0..4096)) {
            run_script(&script);
        }
    }
}
