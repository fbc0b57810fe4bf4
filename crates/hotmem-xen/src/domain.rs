//! Creates and destroys domains from a control domain, as Xen's `domctl.h` and `memory.h` define.

use crate::abi::{DomId, Errno, number};
#[cfg(target_arch = "x86_64")]
use crate::syscall_hypervisor::SyscallHypervisor;
use hotmem_addr::Pfn;

/// `XEN_DOMCTL_INTERFACE_VERSION` of Xen 4.17. The structures of this file have its layout.
pub const DOMCTL_VERSION: u32 = 0x15;

/// `XEN_DOMCTL_createdomain`, `destroydomain` and `max_mem`.
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

/// `struct xen_memory_reservation`. `extents` is the address of the frame numbers.
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
impl SyscallHypervisor {
    /// Creates a PV domain of at most `max_kib` KiB. The domain never runs, because it has no CPU
    /// state.
    ///
    /// # Errors
    /// The error that Xen returned.
    pub fn create_domain(&mut self, max_kib: u64) -> Result<DomId, Errno> {
        // The number 0 in the field `domain` makes Xen choose the number of the new domain. `words`
        // holds a `struct xen_domctl_createdomain`: ssidref, four words of the handle, flags,
        // iommu_opts, max_vcpus, max_evtchn_port, max_grant_frames and max_maptrack_frames (-1 is
        // Xen's default), grant_opts. All other words are 0.
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
                // Ignore an error of this call, because the caller gets the first error.
                let _ = self.destroy_domain(domain);
                Err(errno)
            }
        }
    }

    /// Gives the domain memory at the guest frame numbers in `frames`, and replaces each of them by
    /// the machine frame number. Returns the number of frames that Xen populated.
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
        // SAFETY: the hypercall reads and writes `reservation` and the frame numbers of `frames`.
        // `Pfn` holds a frame number as a 64-bit word.
        unsafe { self.call(number::MEMORY_OP, [XENMEM_POPULATE_PHYSMAP, pointer, 0, 0, 0]) }
    }

    /// Destroys the domain. Xen frees a frame of the domain when no other domain maps the frame any
    /// more.
    ///
    /// # Errors
    /// The error that Xen returned.
    pub fn destroy_domain(&mut self, domain: DomId) -> Result<(), Errno> {
        self.domctl(&mut Domctl::new(DESTROY, domain))
    }

    fn domctl(&mut self, domctl: &mut Domctl) -> Result<(), Errno> {
        let pointer = core::ptr::from_mut(domctl).expose_provenance() as u64;
        // SAFETY: the hypercall reads and writes `domctl`.
        unsafe { self.call(number::DOMCTL, [pointer, 0, 0, 0, 0]) }.map(|_| ())
    }
}
