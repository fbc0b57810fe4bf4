//! Injects wrong answers of the firmware, to test errors on a machine with real connectors.

use crate::rtas::{Firmware, Tokens};
use crate::work_area::WorkArea;
use hotmem_dlpar::{Call, DrcIndex};

/// The index of a connector that is not an LMB's: that of the first processor.
pub const FOREIGN: DrcIndex = DrcIndex(0x1000_0000);

/// The call that gets a wrong answer, and the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The call.
    pub at: At,
    /// The number of the first such call with a wrong answer, from 1.
    pub nth: u32,
    /// Whether all later calls get the wrong answer too, until the fault ends.
    pub lasts: bool,
    /// The answer.
    pub answer: Answer,
}

/// A call of the firmware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// A call for a connector.
    Connector(Call),
    /// `check-exception`. If the wrong answer is a log, only calls with an event count.
    Event,
}

/// A wrong answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This status, without carrying out the call. An event stays for the next call.
    Status(i32),
    /// An event's log that ends within its sections.
    Short,
    /// An event's log of another version.
    Version,
    /// An event about [`FOREIGN`].
    Foreign,
}

impl Fault {
    /// Reads `CALL:N:ANSWER` or `CALL:N+:ANSWER`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Fault> {
        let (call, rest) = text.split_once(':')?;
        let (which, answer) = rest.split_once(':')?;
        let nth = which.strip_suffix('+');
        let at = match call {
            "sense" => At::Connector(Call::Sense),
            "usable" => At::Connector(Call::SetUsable),
            "unusable" => At::Connector(Call::SetUnusable),
            "isolate" => At::Connector(Call::Isolate),
            "unisolate" => At::Connector(Call::Unisolate),
            "configure" => At::Connector(Call::Configure),
            "event" => At::Event,
            _ => return None,
        };
        let answer = match (answer, at) {
            ("short", At::Event) => Answer::Short,
            ("version", At::Event) => Answer::Version,
            ("foreign", At::Event) => Answer::Foreign,
            (status, _) => Answer::Status(status.parse().ok()?),
        };
        let lasts = nth.is_some();
        let nth = nth.unwrap_or(which).parse().ok().filter(|&nth| nth > 0)?;
        Some(Fault { at, nth, lasts, answer })
    }
}

/// Firmware with an injected fault.
#[derive(Debug)]
pub struct Faulty<F> {
    firmware: F,
    tokens: Tokens,
    fault: Option<Fault>,
    /// The number of calls of the fault's kind so far.
    calls: u32,
}

impl<F> Faulty<F> {
    /// Makes firmware with a fault; `tokens` are those of its calls.
    pub fn new(firmware: F, tokens: Tokens, fault: Option<Fault>) -> Faulty<F> {
        Faulty { firmware, tokens, fault, calls: 0 }
    }

    /// Ends a lasting fault, if it has begun.
    pub fn lift(&mut self) {
        self.fault.take_if(|fault| fault.lasts && self.calls >= fault.nth);
    }

    /// Counts a call. Returns the wrong answer, if the call gets one.
    fn answer(&mut self, at: At) -> Option<Answer> {
        let fault = self.fault.filter(|fault| fault.at == at)?;
        self.calls += 1;
        let wrong = self.calls == fault.nth || fault.lasts && self.calls > fault.nth;
        wrong.then_some(fault.answer)
    }
}

impl<F: Firmware> Firmware for Faulty<F> {
    fn call(&mut self, token: u32, args: &[u32], results: &mut [u32]) {
        // The call is identified only if there is a fault.
        let call = self.fault.and_then(|_| self.tokens.call_for_connector(token, args));
        match call.and_then(|call| self.answer(At::Connector(call))) {
            Some(Answer::Status(status)) => {
                results.fill(0);
                results[..1].fill(status.cast_unsigned());
            }
            _ => self.firmware.call(token, args, results),
        }
    }

    fn configure_connector(&mut self, token: u32, area: &mut WorkArea) -> i32 {
        match self.answer(At::Connector(Call::Configure)) {
            Some(Answer::Status(status)) => status,
            _ => self.firmware.configure_connector(token, area),
        }
    }

    fn check_exception(&mut self, token: u32, args: [u32; 4], log: &mut [u8]) -> i32 {
        if let Some(Fault { at: At::Event, answer: Answer::Status(status), .. }) = self.fault {
            if self.answer(At::Event).is_some() {
                return status;
            }
            return self.firmware.check_exception(token, args, log);
        }
        let status = self.firmware.check_exception(token, args, log);
        if status == 0
            && let Some(answer) = self.answer(At::Event)
        {
            spoil(log, answer);
        }
        status
    }
}

/// Corrupts QEMU's log of a hotplug event as the answer says.
fn spoil(log: &mut [u8], answer: Answer) {
    let (at, bytes): (usize, &[u8]) = match answer {
        Answer::Status(_) => return,
        // In the middle of the second section.
        Answer::Short => (4, &[0, 0, 0, 80]),
        Answer::Version => (0, &[5]),
        Answer::Foreign => (112, &FOREIGN.0.to_be_bytes()),
    };
    if let Some(place) = log.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
#[path = "faults/tests.rs"]
mod tests;
