//! Models claims of pageblocks of many sections. The words of the sections are claimed one after
//! another, and published again if one cannot be claimed.

use super::instance::{BLOCK, Held, SECTION, range};
use super::{Instance, is_deep, model_preemptions};
use crate::frames::{AllocError, AllocRequest};
use crate::hotplug::OnlineType;
use crate::range_error::{RangeError, RangeErrorKind};

/// The number of words of free pageblocks: one for each section of 1 GiB.
const WORDS: u64 = 8;

/// Returns the number of words for scenarios that read every word many times: [`WORDS`] if the
/// tests may take long, and otherwise fewer.
fn few_or_all_words() -> u64 {
    if is_deep() { WORDS } else { 3 }
}

fn all_memory(words: u64) -> AllocRequest {
    AllocRequest::frames(words * SECTION)
}

/// Checks that all memory can be allocated by one request.
fn check_empty(instance: &Instance, words: u64) {
    instance.validate();
    instance.free(instance.alloc(all_memory(words)));
    instance.validate();
}

/// Runs `other_work` on CPU 1 during an allocation of all memory, and frees what the two have
/// allocated. After that, all memory must be free.
fn claim_all_memory_during(
    words: u64,
    other_work: impl Fn(&Instance) -> Option<Held> + Copy + Send + Sync + 'static,
) {
    model_preemptions(1, move || {
        let instance = Instance::new(words as usize);
        let other_thread = instance.spawn_on(1, other_work);
        let main_held = instance.try_alloc(all_memory(words));
        let other_held = other_thread.join().unwrap();
        assert!(main_held.is_err() || other_held.is_none());
        main_held.into_iter().chain(other_held).for_each(|held| instance.free(held));
        check_empty(&instance, words);
    });
}

#[test]
fn a_wide_claim_races_with_an_allocation_of_a_frame() {
    claim_all_memory_during(few_or_all_words(), |instance| {
        instance.try_alloc(AllocRequest::frames(1)).ok()
    });
}

#[test]
fn a_wide_claim_races_with_an_allocation_of_a_pageblock_in_its_middle() {
    let place = range(4 * SECTION + BLOCK, 1).start();
    let block = AllocRequest::frames(BLOCK).at(place);
    claim_all_memory_during(WORDS, move |instance| instance.try_alloc(block).ok());
}

/// The claim forgets nothing if it fails, and its memory is no longer zero if it succeeds.
#[test]
fn a_wide_claim_of_zero_memory_races_with_an_allocation_of_a_pageblock_in_its_middle() {
    model_preemptions(1, || {
        let words = few_or_all_words();
        let block = AllocRequest::frames(BLOCK);
        let (first, middle) = (block.at(range(0, 1).start()), range(SECTION + BLOCK, 1).start());
        let instance = Instance::new(words as usize);
        assert!(instance.zero_block(0));
        let other_thread =
            instance.spawn_on(1, move |instance| instance.try_alloc(block.at(middle)).ok());
        match instance.try_alloc(all_memory(words)) {
            Ok(held) => {
                instance.free(held);
                instance.free(instance.alloc(first));
            }
            Err(_) => instance.free(instance.alloc_known_zero(first)),
        }
        other_thread.join().unwrap().into_iter().for_each(|held| instance.free(held));
        check_empty(&instance, words);
    });
}

#[test]
fn two_wide_claims_race() {
    let words = few_or_all_words();
    let more_than_half = AllocRequest::frames((words / 2 + 1) * SECTION - BLOCK + 1);
    claim_all_memory_during(words, move |instance| instance.try_alloc(more_than_half).ok());
}

#[test]
fn a_wide_claim_races_with_an_isolation() {
    claim_all_memory_during(WORDS, |instance| {
        match instance.call().isolate_range(range(5 * SECTION, 2 * SECTION)) {
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
    claim_all_memory_during(WORDS, |instance| {
        let last = range((WORDS - 1) * SECTION, SECTION);
        if instance.take_offline(last) {
            instance.overwrite(last);
            instance.online(last, OnlineType::Kernel);
        }
        None
    });
}

#[test]
fn a_wide_claim_races_with_the_free_of_a_pageblock_that_it_needs() {
    model_preemptions(1, || {
        let instance = Instance::new(WORDS as usize);
        let missing = instance.alloc(AllocRequest::frames(1).at(range(6 * SECTION, 1).start()));
        let other_thread = instance.spawn_on(1, |instance| instance.free(missing));
        let main_held = instance.try_alloc(all_memory(WORDS));
        other_thread.join().unwrap();
        main_held.into_iter().for_each(|held| instance.free(held));
        check_empty(&instance, WORDS);
    });
}

#[test]
fn a_wide_free_races_with_an_allocation() {
    let words = few_or_all_words();
    model_preemptions(1, move || {
        let instance = Instance::new(words as usize);
        let (low, high) = instance.split(instance.alloc(all_memory(words)), 3);
        let other_thread =
            instance.spawn_on(1, |instance| instance.try_alloc(AllocRequest::frames(2 * SECTION)));
        instance.free(high);
        let other_held = other_thread.join().unwrap();
        other_held.into_iter().chain([low]).for_each(|held| instance.free(held));
        check_empty(&instance, words);
    });
}

#[test]
fn a_failed_wide_claim_hides_no_memory_from_another() {
    let words = few_or_all_words();
    model_preemptions(1, move || {
        let instance = Instance::new(words as usize);
        let last =
            instance.alloc(AllocRequest::frames(1).at(range(words * SECTION - 1, 1).start()));
        let other_thread = instance.spawn_on(1, move |instance| {
            // `words - 1` sections are free all the time.
            match instance.try_alloc(all_memory(words - 1)) {
                Ok(held) => instance.free(held),
                Err(error) => assert_eq!(error, AllocError::Busy),
            }
        });
        assert!(instance.try_alloc(all_memory(words)).is_err());
        other_thread.join().unwrap();
        instance.free(last);
        check_empty(&instance, words);
    });
}
