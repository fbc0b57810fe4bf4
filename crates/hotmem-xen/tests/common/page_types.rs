//! Counts the uses of frames by type, as Xen's `get_page_type` and `put_page_type` do.

use super::{Page, Xen};
use hotmem_addr::Pfn;
use hotmem_pgtable::x86_64::{Entry, Flags};
use hotmem_pgtable::{ENTRIES, EntryAddr, Kind, Level, entry_at};
use hotmem_xen::Errno;
use std::sync::atomic::Ordering::Relaxed;

impl Xen {
    /// Flushes before a frame changes its type, unless a flush has happened since its last use.
    fn flush_for(&self, page: Page) {
        if self.last_flush.get() <= page.last_use {
            self.flush();
        }
    }

    /// `get_page_type`: counts one more use as a table.
    pub(super) fn count_table_use(&self, frame: Pfn, level: Level) -> Result<(), Errno> {
        let mut page = self.page(frame)?;
        match page.table {
            Some((table_level, count)) if table_level == level => {
                page.table = Some((level, count + 1));
            }
            Some(_) => return Err(Errno::EINVAL),
            None if page.writable_mappings > 0 => return Err(Errno::EBUSY),
            None => {
                self.flush_for(page);
                for index in 0..ENTRIES {
                    self.count_entry(entry_at(self.words(frame), index), level)?;
                }
                page.table = Some((level, 1));
            }
        }
        self.set_page(frame, page);
        Ok(())
    }

    /// `put_page_type`: counts one use as a table less. The end of the last use also ends the uses by
    /// the table's entries.
    pub(super) fn release_table_use(&self, frame: Pfn) {
        let mut page = self.page(frame).expect("the frame is a table");
        let (level, count) = page.table.expect("the frame is a table");
        page.table = (count > 1).then_some((level, count - 1));
        page.last_use = self.clock.get();
        self.set_page(frame, page);
        if count == 1 {
            (0..ENTRIES).for_each(|index| {
                self.release_entry(entry_at(self.words(frame), index), level);
            });
        }
    }

    fn count_entry(&self, entry: Entry, level: Level) -> Result<(), Errno> {
        match entry.kind(level) {
            Kind::Table(frame) => self.count_table_use(frame, level.below().unwrap()),
            Kind::Page if level == Level::L1 => {
                let frame = entry.frame(level).ok_or(Errno::EINVAL)?;
                let mut page = self.page(frame)?;
                if entry.flags().contains(Flags::WRITABLE) {
                    if page.table.is_some() {
                        return Err(Errno::EBUSY);
                    }
                    if page.writable_mappings == 0 {
                        self.flush_for(page);
                    }
                    page.writable_mappings += 1;
                    self.set_page(frame, page);
                }
                Ok(())
            }
            Kind::Page | Kind::Malformed => Err(Errno::EINVAL),
            Kind::Software if entry.bits() >> 12 << 12 & 0xf_ffff_ffff_f000 != 0 => {
                panic!("L1 terminal fault: Xen would crash the domain for {entry:?}")
            }
            Kind::Software | Kind::Empty => Ok(()),
        }
    }

    fn release_entry(&self, entry: Entry, level: Level) {
        match entry.kind(level) {
            Kind::Table(frame) => self.release_table_use(frame),
            Kind::Page if entry.flags().contains(Flags::WRITABLE) => {
                let frame = entry.frame(level).expect("the entry maps a page");
                let mut page = self.page(frame).expect("the frame belongs to the domain");
                page.writable_mappings -= 1;
                page.last_use = self.clock.get();
                self.set_page(frame, page);
            }
            _ => {}
        }
    }

    /// Changes an entry of a table, or a word of ordinary memory. `preserve` says whether Accessed and
    /// Dirty of the entry are kept.
    pub(super) fn update_entry(
        &self,
        addr: EntryAddr,
        value: Entry,
        preserve: bool,
    ) -> Result<(), Errno> {
        if let Some(run_other_cpu) = self.other_cpu.borrow_mut().as_mut() {
            run_other_cpu(self);
        }
        let page = self.page(addr.table())?;
        let word = &self.words(addr.table())[addr.index()];
        let Some((level, _)) = page.table else {
            if page.writable_mappings == 0 {
                return Err(Errno::EINVAL);
            }
            word.store(value.bits(), Relaxed);
            return Ok(());
        };
        self.count_entry(value, level)?;
        let old = self.entry(addr);
        let kept_flags =
            if preserve { old.flags() & Flags::ACCESSED_DIRTY } else { Flags::empty() };
        word.store(value.with(kept_flags).bits(), Relaxed);
        self.release_entry(old, level);
        if level != Level::L1 && old.is_present() {
            self.may_be_walked.set(true);
            self.flush();
        }
        Ok(())
    }
}
