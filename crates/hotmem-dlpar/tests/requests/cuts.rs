//! Cuts requests after every call of the hypervisor, which has done its work or not, and answers
//! late, twice, wrongly or never, while the caller continues, cancels, or drops the request and begins
//! anew. Afterwards the table, the engine and the hypervisor must agree, and later requests can add and
//! remove all LMBs.

use crate::basic::{ADD, REMOVE};
use crate::partition::{FIRST_INDEX, HOTPLUG_LMBS, Partition, movable_request, with_partition};
use hotmem::Budget;
use hotmem_dlpar::hypervisor::{Answer, HARDWARE_ERROR, HypervisorRequest};
use hotmem_dlpar::{
    BUSY, Call, Change, DrcIndex, Error, Failure, LmbSelection, Progress, Request, Summary,
};
use hotmem_testkit::{Cut, Ending, Exchange, Work};
use std::cell::Cell;
use std::rc::Rc;

/// The number of LMBs that can be added.
const LMBS: u32 = HOTPLUG_LMBS as u32 - 2;
/// A range with memory that is assigned and memory that is not.
const RANGE: LmbSelection = LmbSelection::Range { first: DrcIndex(FIRST_INDEX + 6), count: 8 };
const REQUESTS: [(Change, LmbSelection); 4] = [
    (ADD, LmbSelection::Count(5)),
    (ADD, RANGE),
    (REMOVE, LmbSelection::Count(4)),
    (REMOVE, RANGE),
];
/// The kinds of work. A call concerns one LMB, so it cannot be half done.
const WORKS: [Work; 6] =
    [Work::None, Work::Done, Work::Refused, Work::Answered, Work::AnsweredTwice, Work::Malformed];
/// What the caller does: it waits, it cancels while the hypervisor is busy, it cancels at once, it
/// cancels two times, or it drops the request with the table, and makes both anew.
const ENDINGS: [Ending; 5] =
    [Ending::Late, Ending::Silence, Ending::Restart, Ending::FailedRestart, Ending::Drop];

/// How the hypervisor answers the next calls.
#[derive(Default)]
struct Script {
    /// The number of calls that are carried out before the hypervisor is busy.
    allowed: Cell<u64>,
    /// How the next call is answered, if not as the others.
    next: Cell<Option<Answer>>,
}

/// A request that is cut.
struct CutRequest<'a, 'w, 'f> {
    partition: &'a mut Partition<'w, 'f>,
    script: Rc<Script>,
    request: Request,
    is_like_qemu: bool,
    result: Option<Result<Summary, Failure>>,
}

impl<'a, 'w, 'f> CutRequest<'a, 'w, 'f> {
    fn begin(
        partition: &'a mut Partition<'w, 'f>,
        is_like_qemu: bool,
        (change, selection): (Change, LmbSelection),
    ) -> CutRequest<'a, 'w, 'f> {
        if is_like_qemu {
            partition.hypervisor.set_like_qemu();
        }
        let script = Rc::new(Script::default());
        let request = movable_request(change, selection);
        let mut request = CutRequest { partition, script, request, is_like_qemu, result: None };
        request.prepare_host(change);
        request.partition.refused_lmbs.clear();
        request.partition.dlpar.begin(request.request).expect("no request is open");
        let script = request.script.clone();
        request.partition.script(move |_, call| {
            if let Some(answer) = script.next.take() {
                return match (call, answer) {
                    // An answer that memory was not isolated must be true.
                    (
                        HypervisorRequest::Connector(_, Call::Isolate),
                        Answer::CarriedOutBut(status @ i32::MIN),
                    ) => Answer::Status(status),
                    _ => answer,
                };
            }
            match script.allowed.get().checked_sub(1) {
                Some(left) => script.allowed.set(left),
                None => return Answer::Status(BUSY),
            }
            Answer::CarryOut
        });
        request
    }

    /// Makes the host plug all memory, or ask all memory back.
    fn prepare_host(&mut self, change: Change) {
        for connector in self.partition.hypervisor.connectors().to_vec() {
            let hypervisor = &mut self.partition.hypervisor;
            match change {
                Change::Add => hypervisor.plug(connector.index, 1),
                Change::Remove if connector.is_backed => {
                    hypervisor.request_back(connector.index, 1)
                }
                Change::Remove => {}
            }
        }
    }

    fn poll(&mut self) {
        if self.result.is_none()
            && let Progress::Ready(result) = self.partition.poll(Budget { pageblocks: 1 })
        {
            self.result = Some(result);
        }
    }

    fn poll_to_end(&mut self) {
        for _ in 0..10_000 {
            self.poll();
            if self.result.is_some() {
                return;
            }
        }
        panic!("the request does not end: {:?}", self.partition.dlpar);
    }

    /// Polls the request to its end, and checks its result.
    fn check_ended(&mut self, cut: Cut) {
        self.poll_to_end();
        let result = self.result.expect("the request has ended");
        self.partition.check_result(&result);
        let is_restored = self.partition.reported_lmbs == 0;
        // A call that fails while the request is being undone leaves its LMB as it is. QEMU does so
        // with an LMB that was made accessible.
        let must_restore = !matches!(cut.work, Work::Refused | Work::Malformed)
            && cut.ending != Ending::FailedRestart
            && !self.is_like_qemu;
        assert!(is_restored || !must_restore, "{result:?}");
    }

    /// Requests a change that must succeed.
    fn request(&mut self, change: Change, lmbs: u32) {
        self.prepare_host(change);
        if lmbs > 0 {
            let summary = self.partition.request(change, LmbSelection::Count(lmbs));
            let summary = summary.expect("nothing prevents the request");
            assert_eq!((summary.lmbs, summary.unrestored, summary.lost), (lmbs, 0, 0));
        }
    }
}

impl Exchange for CutRequest<'_, '_, '_> {
    fn answer(&mut self) {
        self.script.allowed.set(self.script.allowed.get() + 1);
    }

    fn step(&mut self) -> bool {
        self.poll();
        self.result.is_none()
    }

    fn work(&mut self, work: Work) {
        self.script.next.set(match work {
            Work::None => None,
            Work::Done => Some(Answer::CarriedOutBut(BUSY)),
            Work::Refused | Work::HalfDone => Some(Answer::Status(HARDWARE_ERROR)),
            Work::Answered => Some(Answer::CarryOut),
            Work::AnsweredTwice => Some(Answer::CarriedOutTwice),
            Work::Malformed => Some(Answer::CarriedOutBut(i32::MIN)),
        });
        self.poll();
    }

    fn end(&mut self, Cut { ending, steps, .. }: Cut) {
        match ending {
            Ending::Silence => {
                (0..5).for_each(|_| self.poll());
                self.partition.dlpar.cancel();
                (0..5).for_each(|_| self.poll());
            }
            Ending::Restart => self.partition.dlpar.cancel(),
            Ending::FailedRestart => {
                for _ in 0..5 {
                    self.partition.dlpar.cancel();
                    self.poll();
                }
            }
            // Another caller cannot begin a request.
            Ending::Late if self.result.is_none() => {
                let refused = self.partition.dlpar.begin(self.request);
                assert!(matches!(refused, Err(Error::InProgress(_))), "{refused:?}");
            }
            Ending::Drop => {
                // Every second time, the hypervisor is still busy.
                if steps % 2 == 0 {
                    self.script.allowed.set(u64::MAX);
                }
                // The partition may have these LMBs without their memory.
                self.partition.reported_lmbs = self.partition.drop_and_begin_anew();
                self.partition.check_all_online();
                self.partition.check();
            }
            _ => {}
        }
    }

    fn finish(&mut self, cut: Cut) {
        self.script.allowed.set(u64::MAX);
        if cut.ending != Ending::Drop {
            self.check_ended(cut);
        }
        self.partition.end_script_and_count_calls();
        // The next requests mend what this one could not restore.
        let assigned = |request: &Self| request.partition.assigned().len() as u32;
        self.request(ADD, LMBS - assigned(self));
        self.partition.reported_lmbs = 0;
        self.partition.check();
        self.request(REMOVE, LMBS);
        assert_eq!(assigned(self), 0);
        assert_eq!(self.partition.used_frames(), 0, "frames are lost");
    }
}

fn cut_everywhere(is_like_qemu: bool) {
    for request in REQUESTS {
        Cut::each(request, (&WORKS, &ENDINGS), 31, |cut| {
            with_partition(|partition| {
                cut.make(&mut CutRequest::begin(partition, is_like_qemu, request))
            })
        });
    }
}

#[test]
fn no_lmb_is_lost_if_a_request_is_cut_anywhere() {
    cut_everywhere(false);
}

#[test]
fn no_lmb_is_lost_on_qemu_if_a_request_is_cut_anywhere() {
    cut_everywhere(true);
}

/// Cancels a request for one LMB twice while the call "set usable" is busy, so that nobody knows
/// whether the partition has the LMB.
fn leave_unknown(partition: &mut Partition<'_, '_>, is_carried_out: bool) {
    let busy = if is_carried_out { Answer::CarriedOutBut(BUSY) } else { Answer::Status(BUSY) };
    partition.script(move |_, call| match call {
        HypervisorRequest::Connector(_, Call::SetUsable) => busy,
        HypervisorRequest::Connector(_, Call::SetUnusable) => Answer::Status(BUSY),
        _ => Answer::CarryOut,
    });
    let request = movable_request(ADD, LmbSelection::Index(DrcIndex(FIRST_INDEX)));
    let result = partition.run(request, Budget::UNLIMITED, |_| true);
    assert_eq!(result.expect_err("the request was cancelled").unrestored, 1);
    assert_eq!(partition.hypervisor.connectors()[0].is_usable, is_carried_out);
    partition.end_script_and_count_calls();
}

#[test]
fn a_connector_in_an_unknown_state_is_acquired_or_released() {
    for (change, is_carried_out) in [(ADD, false), (ADD, true), (REMOVE, false), (REMOVE, true)] {
        with_partition(|partition| {
            leave_unknown(partition, is_carried_out);
            let selection = LmbSelection::Index(DrcIndex(FIRST_INDEX));
            partition.request(change, selection).expect("nothing prevents the request");
            partition.reported_lmbs = 0;
            partition.check();
            assert_eq!(partition.hypervisor.connectors()[0].is_usable, change == ADD);
        });
    }
}

#[test]
fn a_connector_in_an_unknown_state_is_not_forgotten_when_it_cannot_be_sensed() {
    for change in [ADD, REMOVE] {
        with_partition(|partition| {
            leave_unknown(partition, true);
            partition.script(|_, _| Answer::Status(HARDWARE_ERROR));
            let selection = LmbSelection::Index(DrcIndex(FIRST_INDEX));
            assert!(partition.request(change, selection).is_err());
            partition.end_script_and_count_calls();
            partition.request(change, selection).expect("nothing prevents the request");
        });
    }
}
