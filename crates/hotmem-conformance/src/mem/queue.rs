//! Points of how requests lie in the queue (2.7).

use super::plug::FIRST;
use super::session::Memory;
use super::wire::{ACK, PLUG, PLUGGED, RESPONSE_BYTES, Request, STATE, UNPLUG, UNPLUGGED};
use crate::failure::{Stop, expect};

type Result = core::result::Result<(), Stop>;

/// The queue of requests (5.15.2).
const REQUESTS: u16 = 0;
/// A type that no version of the specification defines.
const UNKNOWN: u16 = 0x7777;

pub(crate) fn request_split(memory: &mut Memory<'_>) -> Result {
    for at in [8, 1, 17] {
        let request = state_request(memory);
        let response = memory.ask_by(request, |request, response| {
            let [first, second] = request.split_at(at);
            [first, second, response]
        })?;
        expect("the response", ACK, response.kind)?;
        expect("the state", UNPLUGGED, response.state)?;
    }
    Ok(())
}

pub(crate) fn response_split(memory: &mut Memory<'_>) -> Result {
    for at in [8, 1] {
        let request = state_request(memory);
        let response = memory.ask_by(request, |request, response| {
            let [first, second] = response.split_at(at);
            [request, first, second]
        })?;
        expect("the response", ACK, response.kind)?;
        expect("the state", UNPLUGGED, response.state)?;
    }
    Ok(())
}

pub(crate) fn used_len_10(memory: &mut Memory<'_>) -> Result {
    let state = state_request(memory);
    // The first is valid, the second is not.
    for request in [state, Request { blocks: 0, ..state }] {
        let used_len = memory.ask(request)?.used_len;
        expect("the used length of a response", RESPONSE_BYTES as u64, used_len)?;
    }
    Ok(())
}

pub(crate) fn batch_order(memory: &mut Memory<'_>) -> Result {
    memory.requested_blocks(2)?;
    let kinds = [STATE, PLUG, STATE, UNPLUG, STATE];
    let responses = batch(memory, kinds)?;
    for (kind, _) in responses {
        expect("the response", ACK, kind)?;
    }
    let states = [UNPLUGGED, PLUGGED, UNPLUGGED];
    for (expected, (_, found)) in states.into_iter().zip(responses.into_iter().step_by(2)) {
        expect("the state in a batch of requests", expected, found)?;
    }
    Ok(())
}

pub(crate) fn unknown_type_does_not_lose_others(memory: &mut Memory<'_>) -> Result {
    let responses = batch(memory, [STATE, UNKNOWN, STATE])?;
    for (kind, state) in [responses[0], responses[2]] {
        expect("the response to a request beside one of an unknown type", ACK, kind)?;
        expect("the state", UNPLUGGED, state)?;
    }
    Ok(())
}

/// Makes requests for one block available at once, waits for all answers, and returns the types and
/// the states of the responses.
fn batch<const N: usize>(
    memory: &mut Memory<'_>,
    kinds: [u16; N],
) -> core::result::Result<[(u16, u16); N], Stop> {
    memory.driver.clear_buffers()?;
    let mut places = [None; N];
    for (place, kind) in places.iter_mut().zip(kinds) {
        let (request, response) = memory.place(Request { kind, ..state_request(memory) })?;
        memory.driver.push(REQUESTS, &[request, response])?;
        *place = Some(response);
    }
    memory.driver.notify(REQUESTS);
    for _ in 0..N {
        memory.driver.wait(REQUESTS)?;
    }
    let mut responses = [(0, 0); N];
    for (response, place) in responses.iter_mut().zip(places.into_iter().flatten()) {
        let read = memory.response(place, 0)?;
        *response = (read.kind, read.state);
    }
    Ok(responses)
}

fn state_request(memory: &Memory<'_>) -> Request {
    Request { kind: STATE, addr: memory.addr(FIRST), blocks: 1, padding: 0 }
}
