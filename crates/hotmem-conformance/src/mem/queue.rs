//! Points of how requests lie in the queue (2.7).

use super::plug::FIRST;
use super::session::{Memory, REQUESTS};
use super::wire::{
    ACK, BUSY, PLUG, PLUGGED, REQUEST_BYTES, RESPONSE_BYTES, Request, Response, STATE, UNPLUG,
    UNPLUGGED,
};
use crate::failure::{Stop, expect};
use crate::ring::Descriptor;

type Result = core::result::Result<(), Stop>;

/// A type that no version of the specification defines.
const UNKNOWN: u16 = 0x7777;

pub(crate) fn request_split(memory: &mut Memory<'_>) -> Result {
    let request = state_request(memory)?;
    for parts in [[8, 16], [1, 23], [17, 7]] {
        let response = memory.ask_in_parts(request, &parts, &[RESPONSE_BYTES])?;
        response.check_state(request, UNPLUGGED)?;
    }
    Ok(())
}

pub(crate) fn response_split(memory: &mut Memory<'_>) -> Result {
    let request = state_request(memory)?;
    for parts in [[8, 2], [1, 9]] {
        let response = memory.ask_in_parts(request, &[REQUEST_BYTES], &parts)?;
        response.check_state(request, UNPLUGGED)?;
    }
    Ok(())
}

/// A device may report fewer bytes than it writes (2.7.8.2), but a driver must not rely on the bytes
/// behind them (2.7.8.3).
pub(crate) fn used_len_10(memory: &mut Memory<'_>) -> Result {
    let state = state_request(memory)?;
    // The first is valid, the second is not.
    for request in [state, Request { blocks: 0, ..state }] {
        let used_len = memory.ask(request)?.used_len;
        expect("the used length of a response", RESPONSE_BYTES as u64, used_len)?;
    }
    Ok(())
}

pub(crate) fn batch_order(memory: &mut Memory<'_>) -> Result {
    let answers = batch(memory, [STATE, PLUG, STATE, UNPLUG, STATE])?;
    for (request, response) in [answers[1], answers[3]] {
        response.check_kind(request, ACK)?;
    }
    for ((request, response), expected) in
        [(answers[0], UNPLUGGED), (answers[2], PLUGGED), (answers[4], UNPLUGGED)]
    {
        response.check_state(request, expected)?;
    }
    Ok(())
}

pub(crate) fn unknown_type_does_not_lose_others(memory: &mut Memory<'_>) -> Result {
    let answers = batch(memory, [STATE, UNKNOWN, STATE])?;
    for (request, response) in [answers[0], answers[2]] {
        response.check_state(request, UNPLUGGED)?;
    }
    Ok(())
}

/// Makes requests for one block available at once, waits for all answers, and returns the requests with
/// their responses.
fn batch<const N: usize>(
    memory: &mut Memory<'_>,
    kinds: [u16; N],
) -> core::result::Result<[(Request, Response); N], Stop> {
    memory.driver.clear_buffers()?;
    let state = state_request(memory)?;
    let requests = kinds.map(|kind| Request { kind, ..state });
    let mut places = [Descriptor::default(); N];
    for (place, request) in places.iter_mut().zip(requests) {
        let (chain, parts) = memory.place(request, &[REQUEST_BYTES], &[RESPONSE_BYTES])?;
        memory.driver.push(REQUESTS, &chain[..parts.end])?;
        *place = chain[parts.start];
    }
    memory.driver.notify(REQUESTS);
    for _ in 0..N {
        memory.driver.wait(REQUESTS)?;
    }
    let mut answers = requests.map(|request| (request, Response::default()));
    for ((_, response), place) in answers.iter_mut().zip(places) {
        *response = memory.response(&[place], 0)?;
        if response.kind == BUSY {
            return Err(Stop::Skipped("the device is busy"));
        }
    }
    Ok(answers)
}

/// Returns a request for the state of a block. Skips the point if the block need not be usable.
fn state_request(memory: &Memory<'_>) -> core::result::Result<Request, Stop> {
    memory.requested_blocks(FIRST + 1)?;
    Ok(Request { kind: STATE, addr: memory.addr(FIRST), blocks: 1, padding: 0 })
}
