//! Injects faults that the host chooses: functions of the kernel that refuse, and wrong answers of
//! the device.

mod fw_cfg;
mod hooks;
mod transport;

pub use hooks::FaultyHooks;
pub use transport::FaultyDevice;

use axstd::println;
use core::sync::atomic::{AtomicU32, Ordering};

/// A fault that can be injected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// ArceOS does not map memory.
    #[cfg_attr(not(feature = "paging"), expect(dead_code, reason = "the boot code has mapped it"))]
    Map,
    /// The kernel refuses to put memory online.
    Online,
    /// The kernel refuses to take memory offline.
    Offline,
    /// The device answers NACK, and does nothing.
    Nack,
    /// The device answers BUSY, and does nothing.
    Busy,
    /// The device answers ERROR, and does nothing.
    Error,
    /// The device does nothing, and its answer is invalid.
    Garbage,
}

/// The names of the faults, in the order of [`Fault`].
const NAMES: [&str; 7] = ["map", "online", "offline", "nack", "busy", "error", "garbage"];

/// For each fault, the number of calls that still succeed, and the number of later calls that fail.
static PLAN: [[AtomicU32; 2]; NAMES.len()] =
    [const { [const { AtomicU32::new(0) }; 2] }; NAMES.len()];

/// Reads the faults to inject: with `nack=3:10` three requests succeed, and the next ten are
/// refused.
pub fn plan() {
    for word in fw_cfg::read("opt/hotmem").iter().flat_map(|text| text.split_whitespace()) {
        match parse(word) {
            // Relaxed, as everywhere in this file: one thread counts.
            Some((plan, counts)) => plan
                .iter()
                .zip(counts)
                .for_each(|(left, count)| left.store(count, Ordering::Relaxed)),
            None => println!("Bail out! opt/hotmem: {word}"),
        }
    }
}

fn parse(word: &str) -> Option<(&'static [AtomicU32; 2], [u32; 2])> {
    let (name, counts) = word.split_once('=')?;
    let place = NAMES.iter().position(|&known| known == name)?;
    let (well, wrong) = counts.split_once(':')?;
    Some((&PLAN[place], [well.parse().ok()?, wrong.parse().ok()?]))
}

/// Counts a call. Returns whether it has this fault.
pub fn happens(fault: Fault) -> bool {
    let [well, wrong] = &PLAN[fault as usize];
    let counts = |left: &AtomicU32| {
        let one_less = |left: u32| left.checked_sub(1);
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    };
    !counts(well) && counts(wrong)
}
