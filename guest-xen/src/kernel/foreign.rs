//! Another domain's memory, mapped and unmapped: document 004's `xfm_scale`.

use super::case::{drop_tables, measure};
use super::console::Console;
use super::figures::Figure;
use super::space::Kernel;
use super::subject::{SUBJECTS, unmap};
use hotmem::Pfn;
use hotmem_guest::report::Report;
use hotmem_pgtable::{Entry, Flags, Unmap};
use hotmem_xen::{Command, MmuUpdate};

/// Makes a domain of so many pages that never runs, maps all of them in batches and unmaps all.
pub(crate) fn run(
    kernel: &mut Kernel,
    report: &mut Report<Console>,
    pages: usize,
    batch: usize,
    runs: u64,
) {
    let domain = super::must("createdomain", kernel.xen.create_domain(pages as u64 * 4 + 1024));
    let space = kernel.build(false, false, pages, |_, _| Entry::EMPTY);
    let frames = FRAMES.get();
    let frames = &mut frames[..pages];
    for (number, frame) in frames.iter_mut().enumerate() {
        *frame = Pfn::new(number as u64).unwrap_or_default();
    }
    let got = super::must("populate_physmap", kernel.xen.populate(domain, frames));
    let mut wrong = u32::from(got != pages as u64);
    let figure = |case, subject| Figure {
        case,
        subject,
        batch,
        entries: pages,
        cycles: 0,
        hypercalls: 0,
        flushes: 0,
    };
    for _ in 0..runs {
        for subject in SUBJECTS {
            let entries = frames.iter().map(|&f| Entry::new(f, Flags::PRESENT | Flags::USER));
            let addresses = kernel.entries(space, 0..pages);
            let update = |(at, entry)| MmuUpdate::new(at, Command::Normal, entry);
            let updates = addresses.zip(entries).map(update);
            measure(kernel, figure("xen-map-foreign", "all"), |kernel| {
                kernel.update(updates, domain, batch);
            });
            let how = Unmap { ignore_used: true, ..Unmap::default() };
            let told = measure(kernel, figure("xen-foreign", subject.name()), |kernel| {
                unmap(kernel, subject, space, pages, batch, how);
            });
            wrong += u32::from(told.pages != pages as u64);
        }
    }
    drop_tables(kernel, space);
    // Frames that are still mapped would keep the domain from ending.
    let ended = kernel.xen.destroy_domain(domain);
    if wrong == 0 && ended.is_ok() {
        report.ok(format_args!("{pages} pages of another domain mapped and unmapped"));
    } else {
        report.not_ok(format_args!("another domain's pages: {wrong} wrong, {ended:?}"));
    }
}

/// The frames of the other domain.
struct Frames(core::cell::UnsafeCell<[Pfn; super::other::PAGES]>);

// SAFETY: only the first CPU runs this file.
unsafe impl Sync for Frames {}

static FRAMES: Frames = Frames(core::cell::UnsafeCell::new([Pfn::ZERO; super::other::PAGES]));

impl Frames {
    #[allow(clippy::mut_from_ref, reason = "see below")]
    fn get(&self) -> &mut [Pfn; super::other::PAGES] {
        // SAFETY: `run` is not called from within itself.
        unsafe { &mut *self.0.get() }
    }
}
