//! Creates and destroys domains from a control domain: `domctl.h`, `memory.h`.

use crate::abi::{DomId, Errno, number};
#[cfg(target_arch = "x86_64")]
use crate::syscall::Syscall;
use hotmem_addr::Pfn;

/// `XEN_DOMCTL_INTERFACE_VERSION` of Xen 4.17, whose layout this is.
pub const DOMCTL_VERSION: u32 = 0x15;

const CREATE: u32 = 1;
const DESTROY: u32 = 2;
const MAX_MEM: u32 = 11;
const XENMEM_POPULATE_PHYSMAP: u64 = 6;

/// `struct xen_domctl`: a header and 128 bytes whose meaning depends on the command.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Domctl {
    command: u32,
    version: u32,
    domain: DomId,
    pad: [u16; 3],
    words: [u32; 32],
}

/// `struct xen_memory_reservation`.
#[repr(C)]
struct Reservation {
    extents: u64,
    count: u64,
    order: u32,
    flags: u32,
    domain: DomId,
}

const _: () = assert!(size_of::<Domctl>() == 16 + 128);

impl Domctl {
    const fn new(command: u32, domain: DomId) -> Domctl {
        Domctl { command, version: DOMCTL_VERSION, domain, pad: [0; 3], words: [0; 32] }
    }
}

#[cfg(target_arch = "x86_64")]
impl Syscall {
    /// Creates a PV domain of at most `max_kib` KiB. It never runs, because it has no CPU state.
    ///
    /// # Errors
    /// The error that Xen returned.
    pub fn create_domain(&mut self, max_kib: u64) -> Result<DomId, Errno> {
        // Zero: Xen chooses the number. The words of `struct xen_domctl_createdomain`: ssidref,
        // the handle's four, flags, iommu_opts, max_vcpus, max_evtchn_port, max_grant_frames,
        // max_maptrack_frames (minus one: Xen's default), grant_opts; the rest 0.
        let mut create = Domctl::new(CREATE, DomId(0));
        create.words[7] = 1;
        create.words[8] = 1023;
        create.words[9] = u32::MAX;
        create.words[10] = u32::MAX;
        create.words[11] = 1;
        self.domctl(&mut create)?;
        let domain = create.domain;
        let mut max_mem = Domctl::new(MAX_MEM, domain);
        #[expect(clippy::cast_possible_truncation, reason = "two halves of a u64")]
        {
            max_mem.words[0] = max_kib as u32;
            max_mem.words[1] = (max_kib >> 32) as u32;
        }
        match self.domctl(&mut max_mem) {
            Ok(()) => Ok(domain),
            Err(errno) => {
                // The new domain is useless; an error here is ignored in favour of the first one.
                let _ = self.destroy_domain(domain);
                Err(errno)
            }
        }
    }

    /// Populates the domain at the frame numbers in `frames`, and writes the machine frame numbers
    /// there. Returns how many it populated.
    ///
    /// # Errors
    /// The error that Xen returned.
    pub fn populate(&mut self, domain: DomId, frames: &mut [Pfn]) -> Result<u64, Errno> {
        let mut reservation = Reservation {
            extents: frames.as_mut_ptr().expose_provenance() as u64,
            count: frames.len() as u64,
            order: 0,
            flags: 0,
            domain,
        };
        let pointer = core::ptr::from_mut(&mut reservation).expose_provenance() as u64;
        // SAFETY: reads and writes `reservation` and the frame numbers it names, which `Pfn` holds
        // as plain 64-bit words.
        unsafe { self.call(number::MEMORY_OP, [XENMEM_POPULATE_PHYSMAP, pointer, 0, 0, 0]) }
    }

    /// Destroys the domain. Its frames are freed when no other domain maps them any more.
    ///
    /// # Errors
    /// The error that Xen returned.
    pub fn destroy_domain(&mut self, domain: DomId) -> Result<(), Errno> {
        self.domctl(&mut Domctl::new(DESTROY, domain))
    }

    fn domctl(&mut self, domctl: &mut Domctl) -> Result<(), Errno> {
        let pointer = core::ptr::from_mut(domctl).expose_provenance() as u64;
        // SAFETY: reads and writes the structure.
        unsafe { self.call(number::DOMCTL, [pointer, 0, 0, 0, 0]) }.map(|_| ())
    }
}
