//! Makes invalid calls of every kind, and checks that each is refused and changes nothing.

use crate::machine::Machine;
use crate::model::{Model, SIZE};
use crate::model_request::ModelRequest;
use hotmem_testkit::PFN_LIMIT;
use hotmem_testkit::{PAGEBLOCK, SECTION};

impl Machine<'_> {
    pub(crate) fn bad_request(&mut self) {
        let bad = self.model.random_bad_range();
        match self.model.rng.u8(..10) {
            0 => self.add_range_if_outside(bad),
            1 => self.online_range(bad),
            2 => self.remove_range(bad),
            3 => self.start_offline(bad),
            4 => self.isolate_range(bad),
            8 => self.detach_range(bad),
            9 => self.device_to_ram(bad),
            5 if bad.is_empty() || !bad.is_aligned(PAGEBLOCK) => self.announce_range(bad),
            _ => self.bad_allocation(),
        }
    }

    fn add_range_if_outside(&mut self, bad: hotmem::PfnRange) {
        if !self.model.in_one_region(bad) || bad.is_empty() || !bad.is_aligned(PAGEBLOCK) {
            self.add_range(bad);
        }
    }

    fn bad_allocation(&mut self) {
        let model = &mut self.model;
        let mut request = model.random_allocation();
        match model.rng.u8(..7) {
            0 => request.frames = 0,
            1 => request.align *= 3,
            2 => request.align = 0,
            3 => request.frames = PFN_LIMIT + model.rng.u64(1..=u64::MAX - PFN_LIMIT),
            4 => request.align = 1 << model.rng.u32(41..64),
            5 => request = ModelRequest { align: SECTION, ..model.random_place(request) },
            _ => {
                request =
                    ModelRequest { below: model.rng.u64(..SIZE), ..model.random_place(request) }
            }
        }
        model.alloc(&request);
    }
}

impl Model<'_> {
    fn random_place(&mut self, request: ModelRequest) -> ModelRequest {
        ModelRequest { at: Some(self.rng.u64(..SIZE)), node: None, ..request }
    }
}
