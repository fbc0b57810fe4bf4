//! Injects faults that the host chooses: the kernel refuses to change memory, or the device gives a
//! wrong answer.

mod hooks;
mod transport;

pub use hooks::FaultyHooks;
pub use transport::FaultyDevice;

use crate::fw_cfg;
use axstd::println;
use core::sync::atomic::{AtomicU32, Ordering};

/// A fault that can be injected.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// ArceOS refuses to map memory.
    #[cfg_attr(
        not(feature = "paging"),
        expect(dead_code, reason = "the boot code has mapped all memory")
    )]
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

/// For each fault, the number of calls that still succeed, and the number of calls after these that
/// fail.
static PLAN: [[AtomicU32; 2]; NAMES.len()] =
    [const { [const { AtomicU32::new(0) }; 2] }; NAMES.len()];

/// Reads the faults to inject. For example, `nack=3:10` means that three requests succeed, and the
/// next ten get the answer NACK.
pub fn read_plan() {
    for word in fw_cfg::read("opt/hotmem").iter().flat_map(|text| text.split_whitespace()) {
        match parse(word) {
            // Relaxed, as everywhere in this file, because only one thread counts calls.
            Some((plan, counts)) => plan
                .iter()
                .zip(counts)
                .for_each(|(remaining, count)| remaining.store(count, Ordering::Relaxed)),
            None => println!("Bail out! opt/hotmem: {word} is not NAME=SUCCESSES:FAILURES"),
        }
    }
}

fn parse(word: &str) -> Option<(&'static [AtomicU32; 2], [u32; 2])> {
    let (name, counts) = word.split_once('=')?;
    let index = NAMES.iter().position(|&known| known == name)?;
    let (successes, failures) = counts.split_once(':')?;
    Some((&PLAN[index], [successes.parse().ok()?, failures.parse().ok()?]))
}

/// Counts a call at which `fault` is possible. Returns whether the call must fail with it.
pub fn inject(fault: Fault) -> bool {
    let [successes, failures] = &PLAN[fault as usize];
    let count_down = |remaining: &AtomicU32| {
        let decremented = |remaining: u32| remaining.checked_sub(1);
        remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decremented).is_ok()
    };
    !count_down(successes) && count_down(failures)
}
