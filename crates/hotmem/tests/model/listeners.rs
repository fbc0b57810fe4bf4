//! Implements listeners that may veto changes, and records the events that each of them received.

use crate::model::{Block, Model};
use hotmem::{PfnRange, Veto};
use hotmem_port::notify::{Chain, Change, Listener};
use hotmem_testkit::{PAGEBLOCK, numbers};
use std::cell::RefCell;
use std::ops::Range;

const LISTENERS: usize = 4;

pub(crate) struct Listeners([ListenerState; LISTENERS]);

struct ListenerState {
    priority: i32,
    is_refusing: bool,
    /// For each pageblock, the number of requests to go offline that the listener has agreed to,
    /// and that are not complete or cancelled yet.
    offline_requests: Vec<u32>,
    /// For each pageblock, whether the listener has agreed to a request to go online that is not
    /// complete or cancelled yet.
    going_online: Vec<bool>,
}

/// The events that listeners received, in order.
type Log = RefCell<Vec<(usize, Event)>>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Going,
    Cancelled,
    Done,
}

/// A listener in the chain, and the log to which it writes.
struct LoggedListener<'a> {
    number: usize,
    state: &'a mut ListenerState,
    log: &'a Log,
}

impl Listeners {
    pub(crate) fn new(blocks: usize) -> Listeners {
        let state = |_| ListenerState {
            priority: 0,
            is_refusing: false,
            offline_requests: vec![0; blocks],
            going_online: vec![false; blocks],
        };
        Listeners(std::array::from_fn(state))
    }

    /// Calls the chain, and returns the events that listeners received.
    fn call<T>(
        &mut self,
        call: impl FnOnce(&mut Chain<'_, LISTENERS>) -> T,
    ) -> (T, Vec<(usize, Event)>) {
        let log = Log::default();
        let states = self.0.iter_mut().enumerate();
        let mut logged: Vec<_> =
            states.map(|(number, state)| LoggedListener { number, state, log: &log }).collect();
        let mut chain = Chain::new();
        for listener in &mut logged {
            chain.add(listener.state.priority, listener).expect("the chain holds all listeners");
        }
        let answer = call(&mut chain);
        (answer, log.into_inner())
    }

    /// Returns the listeners in the order of the chain.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..LISTENERS).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(self.0[number].priority));
        order
    }

    /// Checks that each listener has the same state of these pageblocks as the kernel.
    fn check_known_states(&self, blocks: &[Block], within: PfnRange) {
        for i in block_indices(within) {
            let expected = (blocks[i].agreed_requests, blocks[i].going_online);
            for state in &self.0 {
                let known = (state.offline_requests[i], state.going_online[i]);
                assert_eq!(known, expected, "pageblock {i}");
            }
        }
    }
}

impl Model<'_> {
    /// Asks the listeners, in the order of the chain, until one refuses. Each may refuse at random.
    pub(crate) fn ask_all(&mut self, change: Change) -> Result<(), Veto> {
        for state in &mut self.listeners.0 {
            state.priority = self.rng.i32(-1..=1);
            state.is_refusing = self.rng.u32(..100 * LISTENERS as u32) < self.veto_percent;
        }
        let order = self.listeners.order();
        let refuses = |number: &usize| self.listeners.0[*number].is_refusing;
        let veto = order.iter().position(refuses);
        let (answer, events) = self.listeners.call(|chain| chain.notify_going(change));
        let asked = &order[..veto.map_or(LISTENERS, |at| at + 1)];
        let going = asked.iter().map(|&number| (number, Event::Going));
        let agreed = &order[..veto.unwrap_or(0)];
        let cancelled = agreed.iter().rev().map(|&number| (number, Event::Cancelled));
        assert!(events.into_iter().eq(going.chain(cancelled)));
        assert_eq!(answer, veto.map_or(Ok(()), |at| Err(reason(order[at]))));
        if answer.is_err() {
            let (Change::Online(range) | Change::Offline(range)) = change;
            self.last_veto = Some(range);
        }
        answer
    }

    /// Tells all listeners that a change to which they had agreed is cancelled. The caller must
    /// first record the cancellation in the kernel's state.
    pub(crate) fn tell_cancelled(&mut self, change: Change) {
        let order = self.listeners.order();
        let ((), events) = self.listeners.call(|chain| chain.notify_cancelled(change));
        assert!(events.into_iter().eq(order.into_iter().rev().map(|n| (n, Event::Cancelled))));
        self.check_listeners(change);
    }

    /// Tells all listeners that a change was made. The caller must first record the change in the
    /// kernel's state.
    pub(crate) fn tell_done(&mut self, change: Change) {
        let order = self.listeners.order();
        let ((), events) = self.listeners.call(|chain| chain.notify_done(change));
        assert!(events.into_iter().eq(order.into_iter().map(|n| (n, Event::Done))));
        self.check_listeners(change);
    }

    pub(crate) fn check_listeners(&self, change: Change) {
        let (Change::Online(range) | Change::Offline(range)) = change;
        self.listeners.check_known_states(&self.blocks, range);
    }
}

/// Returns the indices of the pageblocks of `range` in the model.
fn block_indices(range: PfnRange) -> Range<usize> {
    let numbers = numbers(range);
    (numbers.start / PAGEBLOCK) as usize..(numbers.end / PAGEBLOCK) as usize
}

/// Returns the reason why a listener refuses.
fn reason(number: usize) -> Veto {
    Veto(["first listener", "second listener", "third listener", "fourth listener"][number])
}

impl LoggedListener<'_> {
    fn log(&self, event: Event) {
        self.log.borrow_mut().push((self.number, event));
    }

    /// Updates the listener's state of each pageblock of a change.
    fn update_state(
        &mut self,
        change: Change,
        offline: impl Fn(&mut u32),
        online: impl Fn(&mut bool),
    ) {
        match change {
            Change::Online(range) => {
                self.state.going_online[block_indices(range)].iter_mut().for_each(online)
            }
            Change::Offline(range) => {
                self.state.offline_requests[block_indices(range)].iter_mut().for_each(offline)
            }
        }
    }
}

impl Listener for LoggedListener<'_> {
    fn going(&mut self, change: Change) -> Result<(), Veto> {
        self.log(Event::Going);
        if self.state.is_refusing {
            return Err(reason(self.number));
        }
        self.update_state(
            change,
            |requests| *requests += 1,
            |going_online| {
                assert!(!std::mem::replace(going_online, true), "the listener was asked twice")
            },
        );
        Ok(())
    }

    fn cancelled(&mut self, change: Change) {
        self.log(Event::Cancelled);
        self.update_state(
            change,
            |requests| {
                *requests =
                    requests.checked_sub(1).expect("the listener was asked about the pageblock")
            },
            |going_online| {
                assert!(
                    std::mem::replace(going_online, false),
                    "the listener was not asked about the pageblock"
                )
            },
        );
    }

    fn done(&mut self, change: Change) {
        self.log(Event::Done);
        // A listener may be told of a change about which it was not asked: the pageblocks belonged
        // to a token of the test, or a failed request has put them online again.
        self.update_state(
            change,
            |requests| *requests = requests.saturating_sub(1),
            |going_online| *going_online = false,
        );
    }
}
