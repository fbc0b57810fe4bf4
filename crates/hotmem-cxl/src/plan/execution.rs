//! Commits the decoders of a plan, or frees them, as a state machine.

use super::{
    planner::Plan,
    topology::{Component, Step},
};
use crate::{
    decoder::{DecoderError, Decoders, Transition},
    registers::Registers,
};
use core::{fmt, task::Poll, time::Duration};

/// The components of a plan, as the kernel reaches them.
pub trait Machine {
    /// The registers of a component.
    type Registers: Registers;

    /// Returns the decoders of a component and its registers. Returns `None` if the component has been
    /// removed.
    fn decoders(&mut self, component: Component) -> Option<(Decoders, &mut Self::Registers)>;
}

/// A plan whose decoders are being committed or freed, one after the other.
#[derive(Clone, Debug)]
#[must_use = "decoders change only if the execution is polled until it is ready"]
pub struct Execution<'p> {
    plan: &'p Plan,
    goal: Goal,
    /// The number of steps that are committed, as far as is known: the first ones.
    committed: usize,
    transition: Option<Transition>,
    failure: Option<PlanFailure>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goal {
    Committed,
    Free,
}

/// The reason why a plan was not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanFailure {
    /// The first component that failed.
    pub component: Component,
    /// Why.
    pub error: DecoderError,
    /// The number of decoders of the plan that could not be freed: they may still route addresses, so
    /// the range must not be used for anything else.
    pub not_freed: usize,
}

impl<'p> Execution<'p> {
    /// Begins to commit all decoders of a plan. If one fails, those before it are freed.
    pub fn commit(plan: &'p Plan) -> Self {
        let goal = Goal::Committed;
        Execution { plan, goal, committed: 0, transition: None, failure: None }
    }

    /// Begins to free all decoders of a plan that is committed. Nothing may access its addresses any
    /// more. A decoder that fails does not keep others from being freed.
    pub fn uncommit(plan: &'p Plan) -> Self {
        let (goal, committed) = (Goal::Free, plan.steps().count());
        Execution { plan, goal, committed, transition: None, failure: None }
    }

    /// Continues until a component needs time. `now` is the time since any start. Do not poll it again
    /// when it is ready.
    ///
    /// # Errors
    /// A component has failed. All decoders that could be freed are free.
    pub fn poll(
        &mut self,
        machine: &mut impl Machine,
        now: Duration,
    ) -> Poll<Result<(), PlanFailure>> {
        loop {
            let position = match self.goal {
                Goal::Committed => Some(self.committed),
                Goal::Free => self.committed.checked_sub(1),
            };
            let step = position.and_then(|position| self.plan.steps().nth(position));
            let Some(step) = step else {
                return Poll::Ready(self.failure.map_or(Ok(()), Err));
            };
            let result = match self.step(&step, machine, now) {
                Poll::Ready(result) => result,
                Poll::Pending => return Poll::Pending,
            };
            self.transition = None;
            match (self.goal, result) {
                (Goal::Committed, Ok(())) => self.committed += 1,
                (Goal::Committed, Err(error)) => {
                    // A decoder that timed out was told to stay free, but may not have listened.
                    let is_unsure = matches!(error, DecoderError::TimedOut { .. });
                    self.fail(step.component, error, is_unsure);
                    self.goal = Goal::Free;
                }
                (Goal::Free, Ok(())) => self.committed -= 1,
                (Goal::Free, Err(error)) => {
                    // The decoders of a component that has gone route nothing.
                    let routes = !matches!(error, DecoderError::Gone | DecoderError::Free { .. });
                    self.fail(step.component, error, routes);
                    self.committed -= 1;
                }
            }
        }
    }

    fn step(
        &mut self,
        step: &Step,
        machine: &mut impl Machine,
        now: Duration,
    ) -> Poll<Result<(), DecoderError>> {
        let Some((decoders, registers)) = machine.decoders(step.component) else {
            return Poll::Ready(Err(DecoderError::Gone));
        };
        let mut transition = match self.transition {
            Some(transition) => transition,
            None => match self.goal {
                Goal::Committed => decoders.commit(registers, step.n, &step.setting, now)?,
                Goal::Free => decoders.uncommit(registers, step.n, now)?,
            },
        };
        let polled = transition.poll(registers, now);
        self.transition = Some(transition);
        polled
    }

    fn fail(&mut self, component: Component, error: DecoderError, routes: bool) {
        let failure = self.failure.get_or_insert(PlanFailure { component, error, not_freed: 0 });
        failure.not_freed += usize::from(routes);
    }
}

impl core::error::Error for PlanFailure {}

impl fmt::Display for PlanFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {} decoders not freed", self.component, self.error, self.not_freed)
    }
}
