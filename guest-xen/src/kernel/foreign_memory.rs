//! Maps and unmaps another domain's memory, like `xfm_scale`, the benchmark in the report of this
//! problem to Linux.

use super::case::{cost, drop_tables, write_figure};
use super::console::Console;
use super::figures::Figure;
use super::space::{Kernel, UnmappedCounts};
use super::subject::{SUBJECTS, Subject, unmap};
use core::ops::Range;
use hotmem_addr::Pfn;
use hotmem_guest::report::Report;
use hotmem_guest::to_usize;
use hotmem_pgtable::Unmap;
use hotmem_pgtable::x86_64::{Entry, Flags, Space};
use hotmem_xen::{Command, DomId, MmuUpdate};

/// Creates a domain of `pages` pages that never runs. Like that benchmark, maps all its pages batch
/// by batch, and then unmaps them batch by batch. Then maps, reads and unmaps one batch after
/// another, as the sender of a migration does.
pub(crate) fn run(
    kernel: &mut Kernel,
    report: &mut Report<Console>,
    pages: usize,
    batch: usize,
    runs: u64,
) {
    let domain =
        super::stop::must("createdomain", kernel.xen.create_domain(pages as u64 * 4 + 1024));
    let space = kernel.build(false, false, pages, |_, _| Entry::EMPTY);
    let frames = FRAMES.get();
    let frames = &mut frames[..pages];
    for (number, frame) in frames.iter_mut().enumerate() {
        *frame = Pfn::new(number as u64).unwrap_or_default();
    }
    let populated = super::stop::must("populate_physmap", kernel.xen.populate(domain, frames));
    let memory = ForeignMemory { domain, space, frames, batch };
    let mut wrong_runs = u32::from(populated != pages as u64);
    for _ in 0..runs {
        for subject in SUBJECTS {
            let figure = |case| Figure::of(case, subject.name(), batch, pages);
            kernel.page_owner.unmapped_counts = UnmappedCounts::default();
            let (mut map, mut unmap) = (figure("xen-map-foreign"), figure("xen-foreign"));
            for pages in memory.batches() {
                map = map.and(cost(kernel, figure(""), |kernel| memory.map(kernel, pages)));
            }
            for pages in memory.batches() {
                unmap = unmap.and(cost(kernel, figure(""), |kernel| {
                    memory.unmap(kernel, subject, pages);
                }));
            }
            wrong_runs += u32::from(kernel.page_owner.unmapped_counts.pages != pages as u64);
            kernel.page_owner.unmapped_counts = UnmappedCounts::default();
            let mut parts =
                ["xen-migrate-map", "xen-migrate-read", "xen-migrate-unmap"].map(figure);
            for pages in memory.batches() {
                let [map, read, unmap] = parts;
                parts = [
                    map.and(cost(kernel, figure(""), |kernel| memory.map(kernel, pages.clone()))),
                    read.and(cost(kernel, figure(""), |_| read_pages(pages.clone()))),
                    unmap.and(cost(kernel, figure(""), |kernel| {
                        memory.unmap(kernel, subject, pages);
                    })),
                ];
            }
            wrong_runs += u32::from(kernel.page_owner.unmapped_counts.pages != pages as u64);
            [map, unmap].iter().chain(&parts).for_each(write_figure);
        }
    }
    drop_tables(kernel, space, super::space::CONFIG);
    // Frames that are still mapped would prevent the destruction of the domain.
    let ended = kernel.xen.destroy_domain(domain);
    if wrong_runs == 0 && ended.is_ok() {
        report.ok(format_args!("{pages} pages of another domain mapped and unmapped"));
    } else {
        report.not_ok(format_args!("another domain's pages: {wrong_runs} wrong runs, {ended:?}"));
    }
}

/// Another domain's memory and its mapping.
struct ForeignMemory<'a> {
    domain: DomId,
    space: Space,
    frames: &'a [Pfn],
    batch: usize,
}

impl ForeignMemory<'_> {
    fn batches(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (pages, batch) = (self.frames.len(), self.batch);
        (0..pages).step_by(batch).map(move |first| first..pages.min(first + batch))
    }

    fn map(&self, kernel: &mut Kernel, pages: Range<usize>) {
        let frames = self.frames[pages.clone()].iter();
        let entries = frames.map(|&frame| Entry::new(frame, Flags::PRESENT | Flags::USER));
        let addresses = kernel.entries(self.space, pages);
        let update = |(at, entry)| MmuUpdate::new(at, Command::Normal, entry);
        kernel.update(addresses.zip(entries).map(update), self.domain, self.batch);
    }

    fn unmap(&self, kernel: &mut Kernel, subject: Subject, pages: Range<usize>) {
        let options = Unmap { ignore_accessed_and_dirty: true, ..Unmap::default() };
        unmap(kernel, subject, self.space, pages, self.batch, options);
    }
}

/// Reads all of these pages, as the sender of a migration does.
fn read_pages(pages: Range<usize>) {
    for page in pages {
        let start = to_usize(super::space::BASE) + page * 4096;
        for word in (start..start + 4096).step_by(8) {
            // SAFETY: the other domain's memory is mapped there, and is read only.
            unsafe { core::ptr::with_exposed_provenance::<u64>(word).read_volatile() };
        }
    }
}

/// The frames of the other domain.
struct Frames(core::cell::UnsafeCell<[Pfn; super::writer_cpu::PAGES]>);

// SAFETY: only the first CPU runs this file.
unsafe impl Sync for Frames {}

static FRAMES: Frames = Frames(core::cell::UnsafeCell::new([Pfn::ZERO; super::writer_cpu::PAGES]));

impl Frames {
    #[allow(clippy::mut_from_ref, reason = "see below")]
    fn get(&self) -> &mut [Pfn; super::writer_cpu::PAGES] {
        // SAFETY: `run` is not called from within itself.
        unsafe { &mut *self.0.get() }
    }
}
