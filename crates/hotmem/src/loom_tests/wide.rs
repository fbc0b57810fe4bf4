//! Models claims of pageblocks of many sections. The words of the sections are claimed one after
//! another, and published again if one cannot be claimed.

use super::machine::{BLOCK, Held, SECTION, range};
use super::{Machine, is_deep, model_preemptions};
use crate::frames::{AllocError, AllocRequest};
use crate::hotplug::OnlineType;
use crate::range_error::{RangeError, RangeErrorKind};

/// The number of sections of 1 GiB, each of which is one word.
const WORDS: u64 = 8;
/// Returns the number of words for scenarios that read every word many times: [`WORDS`] if the
/// tests may take long, and otherwise fewer.
fn few_or_all_words() -> u64 {
    if is_deep() { WORDS } else { 3 }
}

fn all(words: u64) -> AllocRequest {
    AllocRequest::frames(words * SECTION)
}

/// Checks that all memory can be allocated by one request.
fn check_empty(machine: &Machine, words: u64) {
    machine.validate();
    machine.free(machine.alloc(all(words)));
    machine.validate();
}

/// Runs `other_work` on CPU 1 during an allocation of all memory, and frees what the two have
/// allocated. After that, all memory must be free.
fn claim_all_memory_during(
    words: u64,
    other_work: impl Fn(&Machine) -> Option<Held> + Copy + Send + Sync + 'static,
) {
    model_preemptions(1, move || {
        let machine = Machine::new(words as usize);
        let other_thread = machine.spawn_on(1, other_work);
        let mine = machine.try_alloc(all(words));
        let other = other_thread.join().unwrap();
        assert!(mine.is_err() || other.is_none());
        mine.into_iter().chain(other).for_each(|held| machine.free(held));
        check_empty(&machine, words);
    });
}

#[test]
fn a_wide_claim_races_with_an_allocation_of_a_frame() {
    claim_all_memory_during(few_or_all_words(), |machine| {
        machine.try_alloc(AllocRequest::frames(1)).ok()
    });
}

#[test]
fn a_wide_claim_races_with_an_allocation_of_a_pageblock_in_its_middle() {
    let place = range(4 * SECTION + BLOCK, 1).start();
    let block = AllocRequest::frames(BLOCK).at(place);
    claim_all_memory_during(WORDS, move |machine| machine.try_alloc(block).ok());
}

#[test]
fn two_wide_claims_race() {
    let words = few_or_all_words();
    let more_than_half = AllocRequest::frames((words / 2 + 1) * SECTION - BLOCK + 1);
    claim_all_memory_during(words, move |machine| machine.try_alloc(more_than_half).ok());
}

#[test]
fn a_wide_claim_races_with_an_isolation() {
    claim_all_memory_during(WORDS, |machine| {
        match machine.isolate_range(range(5 * SECTION, 2 * SECTION)) {
            Ok(token) => token.release(),
            Err(error) => {
                assert!(matches!(error, RangeError { kind: RangeErrorKind::Busy, .. }), "{error}")
            }
        }
        None
    });
}

#[test]
fn a_wide_claim_races_with_memory_that_goes_offline_and_comes_back() {
    claim_all_memory_during(WORDS, |machine| {
        let last = range((WORDS - 1) * SECTION, SECTION);
        if machine.take_offline(last) {
            machine.overwrite(last);
            machine.online(last, OnlineType::Kernel);
        }
        None
    });
}

#[test]
fn a_wide_claim_races_with_the_free_of_a_pageblock_that_it_needs() {
    model_preemptions(1, || {
        let machine = Machine::new(WORDS as usize);
        let missing = machine.alloc(AllocRequest::frames(1).at(range(6 * SECTION, 1).start()));
        let other_thread = machine.spawn_on(1, |machine| machine.free(missing));
        let mine = machine.try_alloc(all(WORDS));
        other_thread.join().unwrap();
        mine.into_iter().for_each(|held| machine.free(held));
        check_empty(&machine, WORDS);
    });
}

#[test]
fn a_wide_free_races_with_an_allocation() {
    let words = few_or_all_words();
    model_preemptions(1, move || {
        let machine = Machine::new(words as usize);
        let (low, high) = machine.split(machine.alloc(all(words)), 3);
        let other_thread =
            machine.spawn_on(1, |machine| machine.try_alloc(AllocRequest::frames(2 * SECTION)));
        machine.free(high);
        let other = other_thread.join().unwrap();
        other.into_iter().chain([low]).for_each(|held| machine.free(held));
        check_empty(&machine, words);
    });
}

#[test]
fn a_failed_wide_claim_hides_no_memory_from_another() {
    let words = few_or_all_words();
    model_preemptions(1, move || {
        let machine = Machine::new(words as usize);
        let last = machine.alloc(AllocRequest::frames(1).at(range(words * SECTION - 1, 1).start()));
        let other_thread = machine.spawn_on(1, move |machine| {
            // `words - 1` sections are free all the time.
            match machine.try_alloc(all(words - 1)) {
                Ok(held) => machine.free(held),
                Err(error) => assert_eq!(error, AllocError::Busy),
            }
        });
        assert!(machine.try_alloc(all(words)).is_err());
        other_thread.join().unwrap();
        machine.free(last);
        check_empty(&machine, words);
    });
}
