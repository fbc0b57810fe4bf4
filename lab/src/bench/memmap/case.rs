//! Defines the cases of the bench, and measures a subject in a case.

use super::{field_by_field, fill::Fill, memory::PageSize};
use anyhow::{Error, Result};
use hotmem::{Bytes, PfnRange, geometry::PAGEBLOCK_FRAMES};
use hotmem_guest::{
    descriptor::{Owner, Page},
    layout::Layout,
};
use hotmem_memmap::{Compound, Kind, Memmap, Slots, Stores};
use std::{
    mem::MaybeUninit,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// The fastest fill on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct FastestFill {
    pub(super) fill: Fill,
    pub(super) stores: Stores,
}

/// A subject: code that writes descriptors, or only fills memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Subject {
    /// Writes field by field.
    FieldByField,
    /// Repeats a template by ordinary stores.
    Template,
    /// Repeats a template by stores of general registers that bypass the caches.
    Movnti,
    /// Repeats a template by the stores that suit the memory. If the memory holds older
    /// descriptors, these are the widest stores that bypass the caches. If the host has just
    /// cleared the memory, they are ordinary stores.
    Hotmem,
    /// Fills the same memory with a repeated byte by the fastest stores.
    Limit,
    /// Fills the same memory with a repeated byte by stores of general registers.
    LimitMovnti,
}

impl Subject {
    pub(super) const ALL: [Subject; 6] = [
        Subject::FieldByField,
        Subject::Template,
        Subject::Movnti,
        Subject::Hotmem,
        Subject::Limit,
        Subject::LimitMovnti,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Subject::FieldByField => "before",
            Subject::Template => "template",
            Subject::Movnti => "movnti",
            Subject::Hotmem => "hotmem",
            Subject::Limit => "limit",
            Subject::LimitMovnti => "limit-movnti",
        }
    }

    /// Returns whether the subject only fills memory.
    pub(super) fn is_limit(self) -> bool {
        matches!(self, Subject::Limit | Subject::LimitMovnti)
    }

    /// Returns the limit with which this subject is compared.
    pub(super) const fn limit(self) -> Subject {
        match self {
            Subject::Movnti | Subject::LimitMovnti => Subject::LimitMovnti,
            _ => Subject::Limit,
        }
    }
}

/// Device memory, and how it is divided into pages.
#[derive(Debug)]
pub(super) struct Namespace {
    name: &'static str,
    kind: Kind,
    compound: Compound,
    shares_tails: bool,
    /// The subjects that are measured with this namespace.
    pub(super) subjects: &'static [Subject],
    /// Whether the first bind is measured as well as rebinds.
    measures_first_bind: bool,
}

impl Namespace {
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }
}

pub(super) const NAMESPACES: &[Namespace] = &[
    Namespace {
        name: "fsdax",
        kind: Kind::FileSystemDax,
        compound: Compound::SINGLE,
        shares_tails: false,
        subjects: &Subject::ALL,
        measures_first_bind: true,
    },
    Namespace {
        name: "devdax-2M",
        kind: Kind::DeviceDax,
        compound: Compound::MIB_2,
        shares_tails: false,
        subjects: &Subject::ALL,
        measures_first_bind: true,
    },
    Namespace {
        name: "devdax-1G",
        kind: Kind::DeviceDax,
        compound: Compound::GIB_1,
        shares_tails: false,
        subjects: &Subject::ALL,
        measures_first_bind: false,
    },
    Namespace {
        name: "devdax-2M-shared",
        kind: Kind::DeviceDax,
        compound: Compound::MIB_2,
        shares_tails: true,
        subjects: &[Subject::Template, Subject::Movnti, Subject::Hotmem],
        measures_first_bind: false,
    },
];

/// A bind of a namespace on `cpus` CPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) namespace: &'static Namespace,
    pub(super) bind: BindKind,
    pub(super) cpus: u64,
}

/// The kind of a bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BindKind {
    /// A bind to memory that was never touched. The host allocates and clears it during the bind.
    First(PageSize),
    /// A bind to memory that holds older descriptors.
    Rebind,
}

impl Case {
    /// Returns all cases on one CPU and, if there are several, on all CPUs.
    pub(super) fn all(cpus: u64) -> Vec<Case> {
        let mut cases = Vec::new();
        for cpus in [1].into_iter().chain((cpus > 1).then_some(cpus)) {
            for namespace in NAMESPACES {
                let first = [PageSize::Huge, PageSize::Small].map(BindKind::First);
                let binds = first
                    .into_iter()
                    .filter(|_| namespace.measures_first_bind)
                    .chain([BindKind::Rebind]);
                cases.extend(binds.map(|bind| Case { namespace, bind, cpus }));
            }
        }
        cases
    }

    /// Returns the case's name, from general to specific: `fsdax/rebind`, `fsdax/first-4K/2cpus`.
    pub(super) fn name(&self) -> String {
        let bind = match self.bind {
            BindKind::First(PageSize::Huge) => "first",
            BindKind::First(PageSize::Small) => "first-4K",
            BindKind::Rebind => "rebind",
        };
        let cpus = if self.cpus > 1 { format!("/{}cpus", self.cpus) } else { String::new() };
        format!("{}/{bind}{cpus}", self.namespace.name)
    }

    /// Makes `subject` write the descriptors of `range` to `slots` on all CPUs of the case. Returns
    /// the time from the first thread's start to the last thread's end.
    pub(super) fn measure(
        &self,
        subject: Subject,
        fastest: FastestFill,
        range: PfnRange,
        slots: &mut [MaybeUninit<Page>],
    ) -> Result<Duration> {
        // The address that the descriptor of frame 0 would have.
        let start_offset = range.start().number() * size_of::<Page>() as u64;
        let memmap_base = (slots.as_ptr().addr() as u64).wrapping_sub(start_offset);
        let owner = Owner::device(0x00de_71ce, memmap_base);
        let parts = self.parts(range, slots);
        let barrier = Barrier::new(parts.len());
        let timed = |(range, slots)| {
            barrier.wait();
            let start = Instant::now();
            self.describe(subject, fastest, range, slots, &owner)?;
            Ok::<_, Error>((start, Instant::now()))
        };
        let times = thread::scope(|scope| {
            let (mut parts, timed) = (parts.into_iter(), &timed);
            let own_part = parts.next();
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || timed(part))).collect();
            let mut times =
                vec![own_part.map_or_else(|| Ok((Instant::now(), Instant::now())), timed)?];
            for thread in threads {
                times.push(thread.join().expect("a describing thread panicked")?);
            }
            Ok::<_, Error>(times)
        })?;
        let start = times.iter().map(|&(start, _)| start).min();
        let end = times.iter().map(|&(_, end)| end).max();
        Ok(end.zip(start).map_or(Duration::ZERO, |(end, start)| end.duration_since(start)))
    }

    /// Divides the range and its slots into one part for each CPU. No part splits a compound page.
    fn parts<'m>(
        &self,
        range: PfnRange,
        mut slots: &'m mut [MaybeUninit<Page>],
    ) -> Vec<(PfnRange, &'m mut [MaybeUninit<Page>])> {
        let alignment = self.namespace.compound.frames().max(PAGEBLOCK_FRAMES as u64);
        let part_frames = range.frames().div_ceil(self.cpus).next_multiple_of(alignment);
        let (mut remaining, mut parts) = (range, Vec::new());
        while let Some(middle) =
            remaining.start().checked_add(part_frames).filter(|_| !remaining.is_empty())
        {
            let (part, after) = remaining.split_at(middle);
            let count = usize::try_from(part.frames()).unwrap_or(slots.len()).min(slots.len());
            let (low, high) = slots.split_at_mut(count);
            parts.push((part, low));
            (remaining, slots) = (after, high);
        }
        parts
    }

    /// Makes `subject` write the descriptors of `range` on the calling thread.
    fn describe(
        &self,
        subject: Subject,
        fastest: FastestFill,
        range: PfnRange,
        slots: &mut [MaybeUninit<Page>],
        owner: &Owner,
    ) -> Result<()> {
        let stores = match subject {
            Subject::FieldByField => {
                field_by_field::describe(
                    slots,
                    range,
                    self.namespace.kind,
                    self.namespace.compound,
                    owner,
                );
                return Ok(());
            }
            Subject::Limit | Subject::LimitMovnti => {
                let fill = if subject == Subject::Limit { fastest.fill } else { Fill::general() };
                fill.fill(slots);
                return Ok(());
            }
            Subject::Template => Stores::ORDINARY,
            Subject::Movnti => Stores::GENERAL_REGISTERS,
            // The memory that the host has just cleared is still in the caches, so ordinary stores
            // are faster.
            Subject::Hotmem if self.bind != BindKind::Rebind => Stores::ORDINARY,
            Subject::Hotmem => fastest.stores,
        };
        self.memmap(owner)?.stores(stores).describe(Slots::of(range, slots)?)?;
        Ok(())
    }

    /// Returns the object with which Hotmem writes the descriptors.
    fn memmap<'d>(&self, owner: &'d Owner) -> Result<Memmap<'d, Owner>> {
        let memmap = Memmap::new(self.namespace.kind, self.namespace.compound, owner);
        Ok(if self.namespace.shares_tails { memmap.sharing_tails()? } else { memmap })
    }

    /// Returns the number of bytes that Hotmem writes to describe `range`.
    pub(super) fn written(&self, range: PfnRange) -> Result<Bytes> {
        let frames = self
            .memmap(&Owner::ram(Layout::FOUR_LEVELS.descriptor_map_base))?
            .layout()
            .frames_needed(range);
        Ok(PfnRange::with_len(hotmem::Pfn::ZERO, frames).unwrap_or_default().bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::memory::Memory, *};
    use hotmem::Pfn;

    const FRAMES: u64 = Compound::GIB_1.frames();

    fn range() -> PfnRange {
        PfnRange::with_len(Pfn::new(FRAMES * 3).unwrap(), FRAMES).unwrap()
    }

    /// Returns the bytes of the descriptors.
    fn bytes(slots: &[MaybeUninit<Page>]) -> &[u8] {
        // SAFETY: the caller has written every slot, and a `Page` has no padding.
        unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), size_of_val(slots)) }
    }

    #[test]
    fn all_subjects_except_the_limits_write_the_same_bytes() {
        let count = usize::try_from(FRAMES).unwrap();
        let mut memory = Memory::new(count, PageSize::Small).unwrap();
        let fastest = FastestFill { fill: Fill::Ordinary, stores: Stores::best() };
        for case in Case::all(2) {
            if case.bind != BindKind::Rebind {
                continue;
            }
            let mut first_bytes: Option<Vec<u8>> = None;
            for &subject in case.namespace.subjects {
                if matches!(subject, Subject::Limit | Subject::LimitMovnti) {
                    continue;
                }
                Fill::Ordinary.fill(memory.slots());
                case.measure(subject, fastest, range(), memory.slots()).unwrap();
                let written = bytes(memory.slots());
                let expected = first_bytes.get_or_insert_with(|| written.to_vec());
                assert!(written == expected, "{}: {subject:?}", case.name());
            }
        }
    }

    #[test]
    fn every_fill_writes_exactly_the_given_slots() {
        let mut memory = Memory::new(100, PageSize::Small).unwrap();
        for fill in Fill::all() {
            Fill::Ordinary.fill(memory.slots());
            let slots = memory.slots();
            for outside in [0, 99] {
                slots[outside] = MaybeUninit::zeroed();
            }
            fill.fill(&mut slots[1..99]);
            let bytes = bytes(memory.slots());
            assert!(bytes[64..99 * 64].iter().all(|byte| *byte == bytes[64]) && bytes[64] != 0);
            assert!(bytes[..64].iter().chain(&bytes[99 * 64..]).all(|&byte| byte == 0), "{fill:?}");
        }
    }

    #[test]
    fn cases_have_the_documented_names() {
        let names: Vec<_> = Case::all(1).iter().map(Case::name).collect();
        for name in [
            "fsdax/first",
            "fsdax/rebind",
            "devdax-2M/first",
            "devdax-2M/rebind",
            "devdax-1G/rebind",
        ] {
            assert!(names.iter().any(|n| n == name), "no {name} in {names:?}");
        }
        let on_two: Vec<_> = Case::all(2).iter().map(Case::name).collect();
        assert!(on_two.starts_with(&names) && on_two.len() == 2 * names.len());
        assert!(on_two.iter().any(|name| name == "fsdax/rebind/2cpus"));
    }

    #[test]
    fn with_shared_tails_an_eighth_of_the_bytes_is_written() {
        let written = NAMESPACES.iter().map(|namespace| {
            let case = Case { namespace, bind: BindKind::Rebind, cpus: 1 };
            case.written(range()).unwrap()
        });
        let [mib_16, mib_2] = [Bytes::mib(16), Bytes::mib(2)];
        assert_eq!(written.collect::<Vec<_>>(), [mib_16, mib_16, mib_16, mib_2]);
    }
}
