//! The tables of the bench: which cases are measured, and on which allocators.

use super::access::Access;
use super::case::Case;
use super::length::Length;
use super::place::Place;
use super::state::State;
use super::subject::Subject;
use hotmem::Bytes;

/// The name of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum TableName {
    /// Frames and huge pages, by one thread and by two at once
    Basic,
    /// A pair of runs of every order, and of lengths that are no powers of two
    Runs,
    /// A run exchanged at random while 90 %, 99 % and 99.9 % of the memory are in use
    NearFull,
    /// Frames of the first 4 GiB of 64 GiB
    Low,
    /// A pair of frames of 4 and of 64 nodes in turn
    Nodes,
    /// The cases of `basic` at 1T and 64T
    Sizes,
    /// Two CPUs in adjacent pageblocks, machines without movable memory, and alternating nodes
    Rare,
    /// The start of a machine
    Start,
}

/// The tables that are measured by default.
const DEFAULT_TABLES: [TableName; 5] =
    [TableName::Basic, TableName::Runs, TableName::NearFull, TableName::Low, TableName::Nodes];
/// The tables of `--thorough`.
const ALL_TABLES: [TableName; 8] = [
    TableName::Basic,
    TableName::Runs,
    TableName::NearFull,
    TableName::Low,
    TableName::Nodes,
    TableName::Sizes,
    TableName::Rare,
    TableName::Start,
];

/// Cases: each combination of one value of each list.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) sizes: Vec<Bytes>,
    pub(super) lengths: Vec<Length>,
    pub(super) threads: Vec<u16>,
    pub(super) places: Vec<Place>,
    pub(super) states: Vec<State>,
    pub(super) accesses: Vec<Access>,
    pub(super) subjects: Vec<Subject>,
}

/// The lengths of the table of runs. `traffic.rs` names each by its number, so that it is a constant in
/// the measured loop.
pub(super) const RUN_LENGTHS: [Length; 16] = [
    Length::Order(0),
    Length::Order(1),
    Length::Frames(3),
    Length::Order(2),
    Length::Frames(5),
    Length::Order(3),
    Length::Frames(12),
    Length::Order(4),
    Length::Order(5),
    Length::Frames(33),
    Length::Order(6),
    Length::Frames(65),
    Length::Order(7),
    Length::Frames(200),
    Length::Order(8),
    Length::Order(9),
];

/// The allocators that allocate runs of any length.
const ALLOCATORS: [Subject; 5] = [
    Subject::Hotmem,
    Subject::Llfree,
    Subject::BuddySlabAllocator,
    Subject::BuddySystemAllocator,
    Subject::BitmapAllocator,
];
/// All subjects.
const SUBJECTS: [Subject; 9] = [
    Subject::Hotmem,
    Subject::HotmemMagazine,
    Subject::HotmemCpuMagazine,
    Subject::HotmemBatches,
    Subject::Llfree,
    Subject::BuddySlabAllocator,
    Subject::BuddySystemAllocator,
    Subject::BitmapAllocator,
    Subject::Limit,
];

impl TableName {
    /// Returns the default tables, or all if `thorough` is set.
    pub(super) const fn default_set(thorough: bool) -> &'static [TableName] {
        if thorough { &ALL_TABLES } else { &DEFAULT_TABLES }
    }

    /// Returns what the table shows.
    pub(super) const fn title(self) -> &'static str {
        match self {
            TableName::Basic | TableName::Sizes => "frames and huge pages",
            TableName::Runs => {
                "runs: one allocated and freed, where nothing else is in use, and \
                                where a pageblock is divided already"
            }
            TableName::NearFull => {
                "near-full machines: a run of the used memory, which is at random \
                                    places, freed at random and one allocated"
            }
            TableName::Low => "low memory: the first 4 GiB of 64 GiB",
            TableName::Nodes => {
                "nodes: a frame of each node in turn allocated and freed, by one CPU"
            }
            TableName::Rare => "neighbours, machines without movable memory, alternating nodes",
            TableName::Start => "the start of a machine",
        }
    }

    /// Returns the table's cases, in groups.
    pub(super) fn groups(self) -> Vec<Group> {
        let basic = Group {
            sizes: vec![Bytes::gib(16)],
            lengths: vec![Length::FRAME, Length::HUGE_PAGE],
            threads: vec![1, 2],
            places: vec![Place::Anywhere],
            states: vec![State::Empty],
            accesses: vec![
                Access::Pair,
                Access::Bulk,
                Access::Random,
                Access::RemoteFree,
                Access::Interrupts,
                Access::Mixed,
            ],
            subjects: SUBJECTS.to_vec(),
        };
        let one_frame = Group {
            sizes: vec![Bytes::gib(64)],
            lengths: vec![Length::FRAME],
            threads: vec![1],
            accesses: vec![Access::Pair],
            subjects: ALLOCATORS.to_vec(),
            ..basic.clone()
        };
        match self {
            TableName::Basic => vec![basic],
            TableName::Sizes => {
                vec![Group { sizes: vec![Bytes::gib(1024), Bytes::gib(64 << 10)], ..basic }]
            }
            TableName::Runs => vec![Group {
                sizes: vec![Bytes::gib(16)],
                lengths: RUN_LENGTHS.to_vec(),
                states: vec![State::Divided, State::Empty],
                ..one_frame
            }],
            TableName::NearFull => {
                let near_full = |size, lengths: &[Length], states: &[State]| Group {
                    sizes: vec![Bytes::gib(size)],
                    lengths: lengths.to_vec(),
                    states: states.to_vec(),
                    accesses: vec![Access::Random],
                    ..one_frame.clone()
                };
                let (frame, run) = (Length::FRAME, Length::Order(3));
                vec![
                    near_full(64, &[frame, run], &[State::Used90, State::Used99, State::Used999]),
                    near_full(4096, &[frame], &[State::Used999]),
                    near_full(4096, &[run], &[State::Used99]),
                ]
            }
            TableName::Low => {
                let low = |length, states: &[State], access| Group {
                    lengths: vec![length],
                    places: vec![Place::Low],
                    states: states.to_vec(),
                    accesses: vec![access],
                    ..one_frame.clone()
                };
                let states = [State::Empty, State::LowHalfUsed, State::LowOneFree];
                vec![
                    low(Length::FRAME, &states, Access::Pair),
                    low(Length::FRAME, &[State::LowUsed], Access::Refused),
                    low(Length::Order(1), &[State::LowScattered], Access::Refused),
                    Group {
                        states: vec![State::AllUsed],
                        accesses: vec![Access::Refused],
                        ..one_frame
                    },
                ]
            }
            TableName::Nodes => vec![Group {
                places: vec![Place::Near4, Place::Near64, Place::Only4, Place::Only64],
                ..one_frame
            }],
            TableName::Rare => vec![
                Group {
                    states: vec![State::Neighbours],
                    accesses: vec![Access::Pair, Access::Bulk],
                    ..basic.clone()
                },
                Group {
                    states: vec![State::WithoutMovable, State::WithoutMovable64Cpus],
                    sizes: vec![Bytes::gib(16)],
                    ..one_frame.clone()
                },
                Group {
                    places: vec![Place::Near4Alternating, Place::Only4Alternating],
                    ..one_frame
                },
            ],
            TableName::Start => vec![Group {
                sizes: [16, 1024, 64 << 10].map(Bytes::gib).to_vec(),
                accesses: vec![Access::Init, Access::Announce, Access::AnnounceAddOnline],
                ..one_frame
            }],
        }
    }
}

impl Group {
    /// Returns the cases. Cases that differ only in the subject are next to each other.
    pub(super) fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &size in &self.sizes {
            for &access in &self.accesses {
                for &place in &self.places {
                    for &state in &self.states {
                        for &length in &self.lengths {
                            for &threads in &self.threads {
                                for &subject in &self.subjects {
                                    let case = Case {
                                        subject,
                                        size,
                                        length,
                                        threads,
                                        place,
                                        state,
                                        access,
                                    };
                                    let case = case.normalized();
                                    if case.is_possible() && !cases.contains(&case) {
                                        cases.push(case);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        cases
    }
}
