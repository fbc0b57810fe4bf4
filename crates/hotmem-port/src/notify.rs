//! Implements a chain of listeners, for kernels in which several parts must agree when memory comes
//! online or goes offline.
//!
//! The chain is optional: a kernel's [`Hooks`](hotmem::Hooks) forward their calls to it. The chain
//! calls its listeners in the order of their priority, the highest first. If a listener returns a
//! veto, the chain calls `cancelled` of the listeners that have agreed, in reverse order. It does not
//! call `cancelled` of the listener that refused, nor of the listeners after it. A chain does not
//! check which instance a call is for.

use hotmem::{PfnRange, Veto};

/// A change of the state of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The range comes online.
    Online(PfnRange),
    /// The range goes offline.
    Offline(PfnRange),
}

/// A part of a kernel that is notified of changes and can veto them.
pub trait Listener {
    /// Decides whether `change` may happen.
    ///
    /// # Errors
    /// A [`Veto`], which prevents the change.
    fn going(&mut self, change: Change) -> Result<(), Veto> {
        let _ = change;
        Ok(())
    }

    /// Handles the cancellation of `change`, to which the listener has agreed.
    fn cancelled(&mut self, change: Change) {
        let _ = change;
    }

    /// Handles the completion of `change`.
    fn done(&mut self, change: Change) {
        let _ = change;
    }
}

/// A chain of at most `N` listeners in the order of their priority.
pub struct Chain<'a, const N: usize> {
    listeners: [Option<Entry<'a>>; N],
}

struct Entry<'a> {
    priority: i32,
    listener: &'a mut dyn Listener,
}

/// The error of [`Chain::add`] if the chain has `N` listeners already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainFull;

impl<'a, const N: usize> Chain<'a, N> {
    /// Returns a chain without listeners.
    #[must_use]
    pub const fn new() -> Chain<'a, N> {
        Chain { listeners: [const { None }; N] }
    }

    /// Adds a listener after the listeners of the same priority.
    ///
    /// # Errors
    /// [`ChainFull`] if the chain has `N` listeners already.
    pub fn add(&mut self, priority: i32, listener: &'a mut dyn Listener) -> Result<(), ChainFull> {
        let used = self.listeners.iter().flatten().count();
        let position = self.listeners.iter().flatten().filter(|e| e.priority >= priority).count();
        *self.listeners.get_mut(used).ok_or(ChainFull)? = Some(Entry { priority, listener });
        self.listeners[position..=used].rotate_right(1);
        Ok(())
    }

    /// Calls [`Listener::going`] of every listener, the highest priority first.
    ///
    /// # Errors
    /// The first veto. Before this function returns the veto, it calls [`Listener::cancelled`] of
    /// the listeners that have agreed.
    pub fn notify_going(&mut self, change: Change) -> Result<(), Veto> {
        for index in 0..N {
            let Some(entry) = &mut self.listeners[index] else { break };
            if let Err(veto) = entry.listener.going(change) {
                cancel(&mut self.listeners[..index], change);
                return Err(veto);
            }
        }
        Ok(())
    }

    /// Calls [`Listener::cancelled`] of every listener, after all have agreed to `change`.
    pub fn notify_cancelled(&mut self, change: Change) {
        cancel(&mut self.listeners, change);
    }

    /// Calls [`Listener::done`] of every listener.
    pub fn notify_done(&mut self, change: Change) {
        for entry in self.listeners.iter_mut().flatten() {
            entry.listener.done(change);
        }
    }
}

fn cancel(agreed: &mut [Option<Entry<'_>>], change: Change) {
    for entry in agreed.iter_mut().rev().flatten() {
        entry.listener.cancelled(change);
    }
}

impl<const N: usize> core::fmt::Debug for Chain<'_, N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let priorities = self.listeners.iter().flatten().map(|entry| entry.priority);
        f.debug_list().entries(priorities).finish()
    }
}

impl<const N: usize> Default for Chain<'_, N> {
    fn default() -> Self {
        Chain::new()
    }
}

impl core::fmt::Display for ChainFull {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the chain has as many listeners as it can hold")
    }
}

impl core::error::Error for ChainFull {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::cell::RefCell;
    use std::vec;
    use std::vec::Vec;

    type Log = RefCell<Vec<(&'static str, &'static str)>>;

    struct LoggingListener<'l> {
        name: &'static str,
        refuses: bool,
        log: &'l Log,
    }

    impl Listener for LoggingListener<'_> {
        fn going(&mut self, _: Change) -> Result<(), Veto> {
            self.log.borrow_mut().push((self.name, "going"));
            if self.refuses { Err(Veto("busy")) } else { Ok(()) }
        }
        fn cancelled(&mut self, _: Change) {
            self.log.borrow_mut().push((self.name, "cancelled"));
        }
        fn done(&mut self, _: Change) {
            self.log.borrow_mut().push((self.name, "done"));
        }
    }

    const CHANGE: Change = Change::Offline(PfnRange::EMPTY);

    #[test]
    fn a_veto_cancels_the_change_for_listeners_that_agreed_in_reverse_order() {
        let log = Log::default();
        let listener = |name, refuses| LoggingListener { name, refuses, log: &log };
        let (mut a, mut b, mut c, mut d) =
            (listener("a", false), listener("b", false), listener("c", true), listener("d", false));
        let mut chain = Chain::<4>::new();
        chain.add(-1, &mut c).unwrap();
        chain.add(5, &mut a).unwrap();
        chain.add(0, &mut b).unwrap();
        chain.add(-1, &mut d).unwrap();
        assert_eq!(chain.notify_going(CHANGE), Err(Veto("busy")));
        let expected_calls = [
            ("a", "going"),
            ("b", "going"),
            ("c", "going"),
            ("b", "cancelled"),
            ("a", "cancelled"),
        ];
        assert_eq!(*log.borrow(), expected_calls);
    }

    #[test]
    fn a_change_that_all_agreed_to_is_done_or_cancelled_for_all() {
        let log = Log::default();
        let listener = |name| LoggingListener { name, refuses: false, log: &log };
        let (mut a, mut b, mut third) = (listener("a"), listener("b"), listener("third"));
        let mut chain = Chain::<2>::new();
        chain.add(0, &mut a).unwrap();
        chain.add(0, &mut b).unwrap();
        assert_eq!(chain.add(0, &mut third), Err(ChainFull));
        chain.notify_going(CHANGE).unwrap();
        chain.notify_done(CHANGE);
        chain.notify_cancelled(CHANGE);
        let names =
            |call| log.borrow().iter().filter(|l| l.1 == call).map(|l| l.0).collect::<Vec<_>>();
        assert_eq!(names("going"), vec!["a", "b"]);
        assert_eq!(names("done"), vec!["a", "b"]);
        assert_eq!(names("cancelled"), vec!["b", "a"]);
    }
}
