//! Generates the cases of tests that cut an exchange between a driver and the other side after
//! every step, with the other side having done its work, or a part of it, or nothing.

use core::fmt::Debug;

/// What the other side has done with the requests that are outstanding after the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It has not looked at them.
    None,
    /// It has carried them out and not answered.
    Done,
    /// It has carried out the first half and not answered.
    HalfDone,
    /// It has refused them and not answered.
    Refused,
    /// It has carried them out and answered.
    Answered,
    /// It has carried them out and answered two times.
    AnsweredTwice,
    /// It has answered with bytes that are no response.
    Malformed,
}

impl Work {
    /// All kinds of work.
    pub const ALL: [Work; 7] = [
        Work::None,
        Work::Done,
        Work::HalfDone,
        Work::Refused,
        Work::Answered,
        Work::AnsweredTwice,
        Work::Malformed,
    ];
}

/// How the exchange goes on after the last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The other side answers late.
    Late,
    /// The other side does not answer in time.
    Silence,
    /// The device resets itself.
    ResetsItself,
    /// The device asks for a reset.
    NeedsReset,
    /// The kernel starts the driver again.
    Restart,
    /// The kernel starts the driver again, and its first attempt fails.
    FailedRestart,
    /// The kernel drops the driver, and starts it anew.
    Drop,
    /// The kernel stops the driver, and starts it anew.
    Stop,
    /// The kernel stops the driver, and the device at first does not complete its reset.
    StuckInReset,
    /// The kernel stops the driver for good, takes its memory out of use, and later begins anew.
    Withdraw,
}

impl Ending {
    /// All endings.
    pub const ALL: [Ending; 10] = [
        Ending::Late,
        Ending::Silence,
        Ending::ResetsItself,
        Ending::NeedsReset,
        Ending::Restart,
        Ending::FailedRestart,
        Ending::Drop,
        Ending::Stop,
        Ending::StuckInReset,
        Ending::Withdraw,
    ];
}

/// An exchange that a [`Cut`] cuts.
pub trait Exchange {
    /// Lets the other side answer the requests that are outstanding.
    fn answer(&mut self);

    /// Makes one step of the driver, which the other side does not notice yet. Returns whether the
    /// driver is not at rest.
    fn step(&mut self) -> bool;

    /// Lets the other side do this work.
    fn work(&mut self, work: Work);

    /// Ends the exchange.
    fn end(&mut self, cut: Cut);

    /// Continues, and checks that both sides and the memory manager agree, that no memory is lost,
    /// and that it can all be used and taken back.
    fn finish(&mut self, cut: Cut);
}

/// A case: where an exchange is cut, and what happens then.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The number of steps of the driver, of which the other side answers all but the last.
    pub steps: u32,
    /// What the other side then does.
    pub work: Work,
    /// How the exchange goes on.
    pub ending: Ending,
}

impl Cut {
    /// Cuts this exchange. Returns whether the driver had a step left to make.
    pub fn make(self, exchange: &mut impl Exchange) -> bool {
        let mut has_more = true;
        for step in 0..self.steps {
            if step > 0 {
                exchange.answer();
            }
            has_more = exchange.step();
        }
        exchange.work(self.work);
        exchange.end(self);
        exchange.finish(self);
        has_more
    }

    /// Calls `run` for cuts with each pair of these kinds of work and endings. Each pair is tried with
    /// one in `interval` of the numbers of steps, and in a deep test with all. `run` returns the
    /// result of [`make`](Self::make). `name` is printed with a cut that fails.
    pub fn each(
        name: impl Debug,
        (works, endings): (&[Work], &[Ending]),
        interval: u32,
        mut run: impl FnMut(Cut) -> bool,
    ) {
        let interval = if crate::env_number("HOTMEM_DEEP").is_some() { 1 } else { interval };
        for first in (0..).step_by(interval as usize) {
            let mut has_more = false;
            let pairs = works.iter().flat_map(|work| endings.iter().map(move |end| (work, end)));
            // Spread the pairs over the numbers of steps, so that each number is tried with some pair,
            // and pairs that follow each other with distant numbers.
            for (nth, (&work, &ending)) in (0..).zip(pairs) {
                let cut = Cut { steps: first + nth * SPREAD % interval, work, ending };
                let _case = PrintedOnPanic(&name, cut);
                has_more |= run(cut);
            }
            if !has_more {
                assert!(first > 0, "{name:?} has no steps");
                return;
            }
            assert!(first < 2000, "the driver does not come to rest in {name:?}");
        }
    }
}

/// A prime number that divides no interval.
const SPREAD: u32 = 17;

/// Prints a case when it is dropped by a panic.
struct PrintedOnPanic<'a>(&'a dyn Debug, Cut);

impl Drop for PrintedOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in the case: {:?}, {:?}", self.0, self.1);
        }
    }
}
