//! Defines the directory of a model, and an allocator over it, made anew for each execution.

use crate::loom_tests::boxes::Boxes;
use crate::sync::Ordering;
use crate::words::directory::{Directory, NodeIndex, SectionId};
use crate::words::{Class, Zone};
use loom::thread;
use std::sync::{Arc, Mutex};

pub(super) const FREE: Class = Class::free(Zone::Kernel);

/// A directory, and an allocator that uses one pageblock of each section.
pub(super) struct Setup {
    pub(super) directory: Directory,
    boxes: Mutex<Boxes>,
}

pub(super) fn id(n: u64) -> SectionId {
    SectionId::new(n).unwrap()
}

pub(super) fn node(n: usize) -> NodeIndex {
    NodeIndex::new(n).unwrap()
}

impl Setup {
    pub(super) fn new() -> Arc<Setup> {
        Arc::new(Setup { directory: Directory::new(), boxes: Mutex::default() })
    }

    /// Makes the words of section `n`, and puts the section on node `node_number`, as the control
    /// path does.
    pub(super) fn install(&self, n: u64, node_number: usize) {
        self.directory.install(id(n), node(node_number), &mut *self.boxes.lock().unwrap()).unwrap();
        self.directory.set_node(id(n), node(node_number));
    }

    /// Makes the pageblock of section `n` free, and the section findable.
    pub(super) fn fill(&self, n: u64) {
        let section = self.directory.section(id(n)).unwrap();
        section.online.fetch_or(1, Ordering::Relaxed);
        section.free.fetch_or(1, Ordering::Release);
        self.directory.set_path(FREE, id(n));
    }

    /// Claims the pageblock of a free section of node `node_number`.
    pub(super) fn claim(&self, node_number: usize) -> Option<SectionId> {
        let mut from = id(0);
        while let Some(found) = self.directory.paths(node(node_number), FREE).next(from) {
            if self.claim_section(found, node_number) {
                return Some(found);
            }
            match SectionId::new(found.number() + 1) {
                Some(next) => from = next,
                None => break,
            }
        }
        None
    }

    fn claim_section(&self, found: SectionId, node_number: usize) -> bool {
        let section = self.directory.section(found).unwrap();
        if section.claim_all(1).is_none() {
            self.directory.clear_section_bit(FREE, found);
            if section.available(FREE) != 0 {
                self.directory.set_path(FREE, found);
            }
            return false;
        }
        let is_on_node = self.directory.node(found) == Some(node(node_number));
        if is_on_node || crate::sync::is_mutant("a claim does not look at the node") {
            return true;
        }
        section.publish(1, |_| ());
        self.directory.set_path(FREE, found);
        false
    }

    /// Takes section `n` offline, and brings it back on node `node_number`, as the control path
    /// does. Returns false if the section is not free.
    pub(super) fn move_to(&self, n: u64, node_number: usize) -> bool {
        let section = self.directory.section(id(n)).unwrap();
        if section.claim_all(1).is_none() {
            return false;
        }
        section.online.fetch_and(!1, Ordering::AcqRel);
        if crate::sync::is_mutant("a node changes after the memory is published") {
            self.fill(n);
            self.install(n, node_number);
            return true;
        }
        self.install(n, node_number);
        self.fill(n);
        true
    }

    /// Checks, while no operation is in flight, that searches of its node find each free section
    /// below `sections`.
    pub(super) fn check(&self, sections: u64) {
        for n in 0..sections {
            let Some(section) = self.directory.section(id(n)) else { continue };
            if section.available(FREE) != 0 {
                assert!(
                    self.directory.leads_to(FREE, id(n)),
                    "no path leads to section {n}, which is free"
                );
            }
        }
    }
}

pub(super) fn spawn_thread(
    number: usize,
    setup: &Arc<Setup>,
    work: impl FnOnce(&Setup) + 'static,
) -> thread::JoinHandle<()> {
    let setup = setup.clone();
    thread::spawn(move || {
        crate::sync::begin_thread(number);
        work(&setup);
    })
}
