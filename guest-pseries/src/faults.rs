//! Injects wrong answers of the firmware, to test errors on a machine with real connectors.

use crate::rtas::{Firmware, Tokens};
use crate::work_area::WorkArea;
use hotmem_dlpar::{Call, DrcIndex};

/// The index of a connector that does not belong to an LMB: the connector of the first processor.
pub const FOREIGN_CONNECTOR: DrcIndex = DrcIndex(0x1000_0000);

/// A wrong answer, and the calls that get it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The kind of call that gets the wrong answer.
    pub call: FaultyCall,
    /// The number, counted from 1, of the first call of that kind that gets the wrong answer.
    pub first_call: u32,
    /// Whether all later calls of that kind get the wrong answer too, until the fault ends.
    pub is_lasting: bool,
    /// The wrong answer.
    pub answer: Answer,
}

/// A kind of call of the firmware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultyCall {
    /// A call for a connector.
    Connector(Call),
    /// `check-exception`. If the wrong answer is a status, all calls are counted; if it is a log,
    /// only those to which the firmware answers with an event.
    Event,
}

/// A wrong answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This status. The firmware does not receive the call. If it has an event, the next call that
    /// it receives gets the event.
    Status(i32),
    /// An event's log that ends within one of its sections.
    TruncatedLog,
    /// An event's log of another version.
    WrongVersion,
    /// An event about [`FOREIGN_CONNECTOR`].
    ForeignConnector,
}

impl Fault {
    /// Parses `CALL:N:ANSWER`, or `CALL:N+:ANSWER` for a fault that lasts. Returns `None` if the
    /// text is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Fault> {
        let (call, rest) = text.split_once(':')?;
        let (number, answer) = rest.split_once(':')?;
        let lasting_number = number.strip_suffix('+');
        let call = match call {
            "sense" => FaultyCall::Connector(Call::Sense),
            "usable" => FaultyCall::Connector(Call::SetUsable),
            "unusable" => FaultyCall::Connector(Call::SetUnusable),
            "isolate" => FaultyCall::Connector(Call::Isolate),
            "unisolate" => FaultyCall::Connector(Call::Unisolate),
            "configure" => FaultyCall::Connector(Call::Configure),
            "event" => FaultyCall::Event,
            _ => return None,
        };
        let answer = match (answer, call) {
            ("short", FaultyCall::Event) => Answer::TruncatedLog,
            ("version", FaultyCall::Event) => Answer::WrongVersion,
            ("foreign", FaultyCall::Event) => Answer::ForeignConnector,
            (status, _) => Answer::Status(status.parse().ok()?),
        };
        let first_call =
            lasting_number.unwrap_or(number).parse().ok().filter(|&number| number > 0)?;
        Some(Fault { call, first_call, is_lasting: lasting_number.is_some(), answer })
    }
}

/// Firmware with an injected fault.
#[derive(Debug)]
pub struct FaultyFirmware<F> {
    firmware: F,
    tokens: Tokens,
    fault: Option<Fault>,
    /// The number of calls of the fault's kind that were made.
    calls: u32,
}

impl<F> FaultyFirmware<F> {
    /// Returns firmware with a fault. `tokens` are the tokens of the firmware's calls.
    pub fn new(firmware: F, tokens: Tokens, fault: Option<Fault>) -> FaultyFirmware<F> {
        FaultyFirmware { firmware, tokens, fault, calls: 0 }
    }

    /// Ends the fault, if it lasts and has begun.
    pub fn end_lasting_fault(&mut self) {
        self.fault.take_if(|fault| fault.is_lasting && self.calls >= fault.first_call);
    }

    /// Counts a call. Returns the wrong answer, if the call gets one.
    fn take_answer(&mut self, call: FaultyCall) -> Option<Answer> {
        let fault = self.fault.filter(|fault| fault.call == call)?;
        self.calls += 1;
        let is_wrong =
            self.calls == fault.first_call || fault.is_lasting && self.calls > fault.first_call;
        is_wrong.then_some(fault.answer)
    }
}

impl<F: Firmware> Firmware for FaultyFirmware<F> {
    fn call(&mut self, token: u32, args: &[u32], results: &mut [u32]) {
        // Do not decode the call if there is no fault.
        let call = self.fault.and_then(|_| self.tokens.call_for_connector(token, args));
        match call.and_then(|call| self.take_answer(FaultyCall::Connector(call))) {
            Some(Answer::Status(status)) => {
                results.fill(0);
                results[..1].fill(status.cast_unsigned());
            }
            _ => self.firmware.call(token, args, results),
        }
    }

    fn configure_connector(&mut self, token: u32, area: &mut WorkArea) -> i32 {
        match self.take_answer(FaultyCall::Connector(Call::Configure)) {
            Some(Answer::Status(status)) => status,
            _ => self.firmware.configure_connector(token, area),
        }
    }

    fn check_exception(&mut self, token: u32, args: [u32; 4], log: &mut [u8]) -> i32 {
        if let Some(Fault { call: FaultyCall::Event, answer: Answer::Status(status), .. }) =
            self.fault
        {
            if self.take_answer(FaultyCall::Event).is_some() {
                return status;
            }
            return self.firmware.check_exception(token, args, log);
        }
        let status = self.firmware.check_exception(token, args, log);
        if status == 0
            && let Some(answer) = self.take_answer(FaultyCall::Event)
        {
            corrupt(log, answer);
        }
        status
    }
}

/// Corrupts QEMU's log of a hotplug event in the way that `answer` selects.
fn corrupt(log: &mut [u8], answer: Answer) {
    let (offset, bytes): (usize, &[u8]) = match answer {
        Answer::Status(_) => return,
        // This length ends the log in the middle of the second section.
        Answer::TruncatedLog => (4, &[0, 0, 0, 80]),
        Answer::WrongVersion => (0, &[5]),
        Answer::ForeignConnector => (112, &FOREIGN_CONNECTOR.0.to_be_bytes()),
    };
    if let Some(target) = log.get_mut(offset..offset + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

#[cfg(test)]
#[path = "faults/tests.rs"]
mod tests;
