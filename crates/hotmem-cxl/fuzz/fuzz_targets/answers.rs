//! Reads arbitrary bytes as answers to commands.
#![no_main]

use hotmem_cxl::command::{Capacity, EventPage, ExtentPage, Region};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(capacity) = Capacity::read(bytes) {
        assert!(capacity.volatile.0 <= capacity.total.0);
    }
    if let Ok((regions, _)) = Region::read_all(bytes) {
        for region in regions.into_iter().flatten() {
            assert!(region.start.checked_add(region.len).is_some());
        }
    }
    if let Ok(page) = ExtentPage::read(bytes) {
        assert!(page.extents().count() <= bytes.len() / 40);
    }
    if let Ok(page) = EventPage::read(bytes) {
        assert!(page.records().count() <= bytes.len() / 0x80);
    }
});
