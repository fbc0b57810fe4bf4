//! The commands of a memory device: payloads and answers (8.2.9).

mod answer;
mod payload;

pub use answer::{
    AnswerError, Capacity, Event, EventPage, Extent, ExtentPage, MAX_REGIONS, More, Record, Region,
};
pub use payload::{
    INTERRUPT_POLICY, clear_event, extents_in, get_dynamic_config, get_events, get_extents, opcode,
    write_extents,
};
