//! A mapper of a kernel that frees page tables when memory is unmapped: mapping the memory again takes
//! frames, which the engine has allocated before.

use hotmem::{AllocRequest, Frames, Hotplug, NoHooks, Pfn, PfnRange};
use hotmem_port::{ConfigurablePlatform, LateMapping, LinearMap, Mapper};
use hotmem_testkit::{Memory, SECTION, Validated as _, range, start};
use std::iter::from_fn;
use std::sync::Mutex;

type Lock = spin::mutex::SpinMutex<()>;
type Mapping = LateMapping<'static, ConfigurablePlatform, Lock>;

const TABLES: usize = 3;

static FRAMES: Frames<ConfigurablePlatform> = Frames::new(ConfigurablePlatform::new());
static MAPPING: Mutex<Option<&'static Mapping>> = Mutex::new(None);
/// The page tables of the memory that is mapped.
static USED: Mutex<Vec<Pfn>> = Mutex::new(Vec::new());

fn map(_: PfnRange) {
    let mapping = MAPPING.lock().unwrap().unwrap();
    let mut used = USED.lock().unwrap();
    assert!(used.is_empty(), "the memory is mapped twice");
    used.extend([(); TABLES].map(|()| mapping.take_table().expect("the frames are promised")));
}

fn unmap(_: PfnRange) {
    for table in USED.lock().unwrap().drain(..) {
        // SAFETY: the table came from the engine as an allocated frame, and nothing uses it any more.
        let freed = unsafe { FRAMES.free_raw(PfnRange::with_len(table, 1).unwrap()) };
        freed.expect("the table is allocated");
    }
}

#[test]
fn a_removal_is_undone_although_no_frame_is_free_for_page_tables() {
    let memory = Box::leak(Box::new(Memory::new(SECTION)));
    // SAFETY: all of `memory` is mapped from the start and never dropped, and nothing else uses it.
    let mapping =
        unsafe { Mapping::new(&FRAMES, LinearMap::new(memory.start()), range(0, SECTION)) };
    let mapping: &'static Mapping = Box::leak(Box::new(mapping));
    *MAPPING.lock().unwrap() = Some(mapping);
    let half = SECTION / 2;
    let ram = [hotmem::BootRange { start: 0, len: range(0, half).bytes() }];
    let mut hotplug: Hotplug<'_, _, _> = start(&FRAMES, mapping, &ram).unwrap();
    // SAFETY: all memory of the test is mapped at all times.
    unsafe {
        mapping.set_mapper(Mapper {
            can_map: |_| Ok(()),
            map,
            unmap,
            unmap_frees_tables: true,
            tables_needed: |_| TABLES as u64,
        })
    };
    let hotplugged = range(half, half);
    hotplug.announce(hotplugged).unwrap();
    hotplug.add(hotplugged).unwrap();
    let before = FRAMES.counts();

    let removal = hotplug.prepare_remove(hotplugged).unwrap();
    assert!(USED.lock().unwrap().is_empty());
    assert_eq!(FRAMES.counts().used, before.used, "the removal has frames for as many tables");
    let all: Vec<_> = from_fn(|| FRAMES.alloc(AllocRequest::frames(1)).ok()).collect();
    hotplug.abandon_remove(removal, &mut NoHooks);
    drop(all);
    assert_eq!(USED.lock().unwrap().len(), TABLES);
    assert_eq!(FRAMES.validated().unwrap().used, before.used);

    drop(hotplug.prepare_remove(hotplugged).unwrap());
    hotplug.remove(hotplugged).unwrap();
    let after = FRAMES.validated().unwrap();
    assert_eq!(after.used, before.used - TABLES as u64, "all frames are free again");
}
