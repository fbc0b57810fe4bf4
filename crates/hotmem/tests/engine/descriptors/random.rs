//! Makes random requests, and checks all descriptors after every eighth request.

use super::*;
use hotmem_testkit::RawHotplugCalls as _;
use hotmem_testkit::RawRanges as _;
use hotmem_testkit::Validated as _;
use hotmem_testkit::forwarding::ForwardingMapping;
use hotmem_testkit::forwarding::with_kernel;

const STEPS: u32 = if cfg!(hotmem_geometry = "small") { 6000 } else { 1000 };

#[test]
fn exactly_the_ram_has_descriptors() {
    with_instance(|instance| {
        let mut rng = Rng::with_seed(7);
        let hot = range(BOOT_SECTIONS * SECTION, (SECTIONS - BOOT_SECTIONS) * SECTION);
        let mut used: Vec<PfnRange> = vec![];
        let mut removal_results = BTreeSet::new();
        for step in 0..STEPS {
            instance.kernel.vetoes = rng.u8(..20) == 0;
            let (run, state) = random_run(&instance.hotplug, hot, &mut rng);
            let kind =
                [OnlineType::Offline, OnlineType::Movable, OnlineType::Kernel][rng.usize(..3)];
            let (hotplug, hooks) = (&mut instance.hotplug, &mut instance.kernel);
            match (rng.u8(..8), state) {
                (0, _) => used.extend(
                    instance.frames.alloc_range(AllocRequest::frames(rng.u64(1..40)).movable()),
                ),
                (1, _) if !used.is_empty() => {
                    let freed = used.swap_remove(rng.usize(..used.len()));
                    instance.frames.free_range(freed).unwrap();
                }
                (2, _) => shrink(instance, hot, &mut rng),
                (3, State::Absent) => with_kernel(hotplug, hooks, |hotplug, _| {
                    hotplug.add(AddRequest { device: true, ..run.into() })
                })
                .unwrap(),
                (_, State::Absent) => {
                    match with_kernel(hotplug, hooks, |hotplug, _| hotplug.add(run)) {
                        Ok(()) => {
                            let _ = hotplug.online(run, kind, hooks);
                        }
                        Err(error) => assert!(matches!(error, AddError::NoTables { .. })),
                    }
                }
                (3, State::Device) => {
                    with_kernel(hotplug, hooks, |hotplug, _| hotplug.detach_raw(run)).unwrap()
                }
                (_, State::Device) => {
                    let _ = with_kernel(hotplug, hooks, |hotplug, hooks| {
                        hotplug.device_to_ram_raw(run, kind, hooks)
                    });
                }
                (3, State::Offline) => {
                    removal_results.insert(
                        with_kernel(hotplug, hooks, |hotplug, _| hotplug.ram_to_device(run))
                            .is_ok(),
                    );
                }
                (4, State::Offline) => {
                    removal_results.insert(
                        with_kernel(hotplug, hooks, |hotplug, _| hotplug.remove(run)).is_ok(),
                    );
                }
                (_, State::Offline) => {
                    let _ = hotplug.online(run, kind, hooks);
                }
                (3.., State::Online | State::OnlineMovable) => {
                    let mut offline = hotplug.offline(run).unwrap();
                    match offline.poll(hotplug, hooks, Budget::UNLIMITED) {
                        Progress::Ready(_) => {}
                        _ => offline.cancel(hotplug, hooks),
                    }
                }
                _ => {}
            }
            if step % 8 == 0 {
                check(instance, hot);
            }
        }
        assert_eq!(removal_results.len(), 2, "removals must both succeed and fail");
        // At the end all memory can be removed.
        instance.kernel.vetoes = false;
        for range in used {
            instance.frames.free_range(range).unwrap();
        }
        while let Some(run) = next_run(&instance.hotplug, hot, State::Device) {
            instance.with(|hotplug, _| hotplug.detach_raw(run)).unwrap();
        }
        while let Some(run) = next_run(&instance.hotplug, hot, State::Offline) {
            instance.hotplug.online(run, OnlineType::Movable, &mut instance.kernel).unwrap();
        }
        let mut left = instance.frames.counts_in(hot).present;
        while let new_left = instance.shrink(hot, left).0
            && new_left < left
        {
            left = new_left;
        }
        // Only memory with frames of descriptors stays: the kernel does not migrate them.
        let is_in_hot = |place: &Place| matches!(place, Place::Frame(f) if hot.contains(*f));
        assert_eq!(left != 0, instance.kernel.descriptor_places.values().any(is_in_hot));
        assert_eq!(left == 0, instance.kernel.descriptor_places.is_empty());
        check(instance, hot);
    });
}

fn next_run(
    hotplug: &Hotplug<'_, OneCpu, ForwardingMapping<Kernel>>,
    within: PfnRange,
    target: State,
) -> Option<PfnRange> {
    let mut remaining = within;
    while !remaining.is_empty() {
        let (run, state) = hotplug.state_at(remaining.start(), remaining.end());
        if state == target {
            return Some(run);
        }
        remaining = remaining.split_at(run.end()).1;
    }
    None
}

/// Returns a random run of memory in one state, which often begins and ends at sections.
fn random_run(
    hotplug: &Hotplug<'_, OneCpu, ForwardingMapping<Kernel>>,
    hot: PfnRange,
    rng: &mut Rng,
) -> (PfnRange, State) {
    let grain = if rng.bool() { PAGEBLOCK } else { SECTION };
    let start = hot.start().number() + rng.u64(..hot.frames() / grain) * grain;
    let end = (start + rng.u64(1..=2 * SECTION / grain) * grain).min(hot.end().number());
    hotplug.state_at(pfn(start), pfn(end))
}

fn shrink(instance: &mut Instance<'_>, hot: PfnRange, rng: &mut Rng) {
    let unit = PAGEBLOCK << rng.u32(..=BLOCKS_PER_SECTION.ilog2());
    let max_run_frames = [u64::MAX, unit, 3 * SECTION / 2][rng.usize(..3)];
    let mut shrink = Shrink::new(ShrinkOptions {
        frames: rng.u64(..hot.frames()),
        unit,
        max_run_frames,
        ..hot.into()
    });
    loop {
        match instance.with(|hotplug, hooks| shrink.poll(hotplug, hooks, Budget { pageblocks: 0 }))
        {
            Progress::Ready(removal) if rng.u8(..4) == 0 => {
                instance.with(|hotplug, hooks| hotplug.abandon_remove(removal, hooks));
            }
            Progress::Ready(removal) => instance.with(|hotplug, _| hotplug.commit_remove(removal)),
            Progress::Working if rng.u8(..8) == 0 => {
                return instance.with(|hotplug, hooks| {
                    shrink.cancel(hotplug, hooks);
                });
            }
            Progress::Working => {}
            _ => return,
        }
    }
}

fn check(instance: &Instance<'_>, hot: PfnRange) {
    instance.frames.validated().unwrap();
    let state = |block: u64| {
        instance.hotplug.state_at(pfn(block * PAGEBLOCK), pfn((block + 1) * PAGEBLOCK)).1
    };
    for block in blocks(hot) {
        let is_ram = !matches!(state(block), State::Absent | State::Device);
        assert_eq!(instance.kernel.descriptor_places.contains_key(&block), is_ram, "{block}");
        let place = instance.kernel.descriptor_places.get(&block);
        let is_online = place.is_none_or(|place| match place {
            Place::ItsSection => instance.kernel.describes_itself(block / BLOCKS_PER_SECTION),
            Place::Frame(frame) => {
                // The frame lies in memory that is online, so it was not removed.
                let host_block = frame.align_down(PAGEBLOCK).number() / PAGEBLOCK;
                matches!(state(host_block), State::Online | State::OnlineMovable)
            }
        });
        assert!(is_online, "the descriptors of {block} lie in memory that was removed");
    }
    let expected: BTreeSet<u64> =
        instance.kernel.descriptor_blocks().map(|block| block.start().number()).collect();
    let listed = instance.frames.metadata().map(|metadata| metadata.frames);
    let listed: BTreeSet<u64> =
        listed.filter(|f| f.frames() == PAGEBLOCK).map(|f| f.start().number()).collect();
    assert_eq!(listed, expected);
    assert!(
        expected.iter().all(|&block| instance.frames.counts_in(range(block, PAGEBLOCK)).free == 0)
    );
}
