//! Tests which memory is known to be zero after it has left the balloon.

use super::*;

/// Features of a balloon whose device says what inflated memory contains.
const INIT_ON_INFLATE: Features = Features::DEVICE_INIT_ON_INFLATE.union(Features::DEFLATE_ON_OOM);
/// Eight pageblocks.
const BALLOON: u32 = 8 * PAGEBLOCK_FRAMES as u32;

/// Inflates eight pageblocks, of which the host initialises the frames whose bits are set in each
/// byte of the bitmaps, and then ends with `end`. Returns how many frames are zero when they are
/// allocated. `negotiated` is what the memory manager is told.
fn zeroed_after(
    bits: u8,
    negotiated: Option<(Features, Poison)>,
    end: impl FnOnce(&mut Guest<'_>),
) -> u32 {
    let machine = Machine::new();
    let _hotplug = machine.boot();
    let mut memory = EngineMemory::new(&machine.frames, MIN_FREE_FRAMES);
    if let Some((features, poison)) = negotiated {
        memory.report(features, poison, settings_that_keep_none_free()).unwrap();
    }
    let mut guest = Guest::with(&machine, INIT_ON_INFLATE, memory);
    (guest.initialised_bits, guest.device.config.num_pages) = (bits, BALLOON);
    guest.run(Duration::from_secs(2));
    assert_eq!(guest.memory.inflated_frames(), u64::from(BALLOON));
    end(&mut guest);
    assert_eq!(guest.memory.inflated_frames(), 0);
    while machine.frames.counts().free_whole > 0 {
        guest.allocate(PAGEBLOCK_FRAMES);
    }
    guest.check();
    u32::try_from(guest.zeroed_frames).unwrap()
}

fn deflate_to(guest: &mut Guest<'_>, target: u32) {
    guest.device.config.num_pages = target;
    guest.run(Duration::from_secs(2));
}

fn deflate(guest: &mut Guest<'_>) {
    deflate_to(guest, 0);
}

#[test]
fn pageblocks_that_the_host_has_initialised_are_zero_in_whatever_order_they_leave() {
    let negotiated = Some((INIT_ON_INFLATE, Poison::None));
    assert_eq!(zeroed_after(0xff, negotiated, deflate), BALLOON);
    let in_steps = |guest: &mut Guest<'_>| {
        [7 * 512, 3 * 512, 0].into_iter().for_each(|target| deflate_to(guest, target));
    };
    assert_eq!(zeroed_after(0xff, negotiated, in_steps), BALLOON);
    // The kernel takes the lowest frames first.
    let needed = |guest: &mut Guest<'_>| {
        guest.memory.need(BALLOON.into());
        guest.run(Duration::from_millis(10));
    };
    assert_eq!(zeroed_after(0xff, negotiated, needed), BALLOON);
}

#[test]
fn pageblocks_of_which_a_part_is_not_initialised_or_leaves_first_are_not_zero() {
    let negotiated = Some((INIT_ON_INFLATE, Poison::None));
    assert_eq!(zeroed_after(0xfe, negotiated, deflate), 0);
    assert_eq!(zeroed_after(0, negotiated, deflate), 0);
    let in_parts = |guest: &mut Guest<'_>| {
        deflate_to(guest, BALLOON - 1);
        deflate(guest);
    };
    let zeroed = zeroed_after(0xff, negotiated, in_parts);
    assert!(zeroed < BALLOON, "{zeroed}");
}

#[test]
fn no_promise_outlasts_a_reset() {
    let reset = |guest: &mut Guest<'_>| {
        guest.device.config.num_pages = 0;
        guest.reset();
    };
    assert_eq!(zeroed_after(0xff, Some((INIT_ON_INFLATE, Poison::None)), reset), 0);
}

/// The simulated host writes zeroes also here, so only the marks are checked.
#[test]
fn memory_that_holds_the_poison_value_is_not_zero() {
    let poison = Poison::Filled(0xaaaa_aaaa);
    let poisoned = INIT_ON_INFLATE | Features::PAGE_POISON;
    assert_eq!(zeroed_after(0xff, Some((poisoned, poison)), deflate), 0);
    // The device does not know the value, so it writes zeroes.
    assert_eq!(zeroed_after(0xff, Some((INIT_ON_INFLATE, poison)), deflate), BALLOON);
    // The memory manager does not know what the device writes.
    assert_eq!(zeroed_after(0xff, None, deflate), 0);
}
