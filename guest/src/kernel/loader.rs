//! Reads what the loader has passed: the tables of PVH, the zero page of Linux's boot protocol, or a device
//! tree. The magic number says which.

use super::boot_memory::{BootMapping, LoaderMap, MAX_ENTRIES, MAX_IN_USE};
use super::take_once::TakeOnce;
use core::fmt;
use hotmem_guest::device_tree::{self, DeviceTree, EarlyDevices, MAX_RANGES, Range, TreeError};
use hotmem_guest::loader_table::{PhysicalMemory, TableError};
use hotmem_guest::memory_map::MemoryMapEntry;
use hotmem_guest::pvh::StartInfo;
use hotmem_guest::to_usize;
use hotmem_guest::zero_page::ZeroPage;

/// The command line, and the loader's memory map and the memory that it uses.
static CMDLINE: TakeOnce<[u8; 4096]> = TakeOnce::new([0; 4096]);
static MEMORY_MAP: TakeOnce<[MemoryMapEntry; MAX_ENTRIES]> =
    TakeOnce::new([MemoryMapEntry::EMPTY; MAX_ENTRIES]);
static IN_USE: TakeOnce<[MemoryMapEntry; MAX_IN_USE]> =
    TakeOnce::new([MemoryMapEntry::EMPTY; MAX_IN_USE]);
static NOT_MAPPED: TakeOnce<[MemoryMapEntry; MAX_IN_USE]> =
    TakeOnce::new([MemoryMapEntry::EMPTY; MAX_IN_USE]);
static TREE: TakeOnce<DeviceTree<'static>> = TakeOnce::new(DeviceTree::EMPTY);

/// What the loader has passed.
pub(crate) struct Loaded {
    pub(crate) command_line: &'static [u8],
    pub(crate) map: LoaderMap<'static>,
    pub(crate) description: Description,
}

/// What describes the rest of the machine.
pub(crate) enum Description {
    /// ACPI's tables. Contains the address of their root pointer, if the loader passed it.
    Acpi { rsdp: Option<u64> },
    /// A device tree.
    Tree(&'static DeviceTree<'static>),
}

/// The reason why the boot information is refused.
pub(crate) enum LoaderError {
    /// The tables of PVH or the zero page are invalid.
    Tables(TableError),
    /// The device tree is invalid.
    Tree(TreeError<'static>),
}

/// Returns the console and the way to end the machine, as far as the boot information at `phys_addr`
/// names them.
#[inline(never)]
pub(crate) fn early_devices(phys_addr: u64) -> EarlyDevices {
    tree_at(phys_addr).map(EarlyDevices::find).unwrap_or_default()
}

impl Loaded {
    /// Reads the boot information at `phys_addr`. Ends the run at the second call.
    #[inline(never)]
    pub(crate) fn read(phys_addr: u64) -> Result<Self, LoaderError> {
        match tree_at(phys_addr) {
            Some(blob) => Self::from_tree(phys_addr, blob).map_err(LoaderError::Tree),
            None => Self::from_tables(phys_addr).map_err(LoaderError::Tables),
        }
    }

    fn from_tables(phys_addr: u64) -> Result<Self, TableError> {
        match ZeroPage::read(&BootMapping, phys_addr)? {
            Some(page) => Self::from_zero_page(page),
            None => Self::from_pvh(StartInfo::read(&BootMapping, phys_addr)?),
        }
    }

    fn from_pvh(info: StartInfo) -> Result<Self, TableError> {
        Ok(Loaded {
            command_line: info.cmdline(&BootMapping, CMDLINE.take())?,
            map: LoaderMap {
                entries: info.memory_map(&BootMapping, MEMORY_MAP.take())?,
                in_use: info.modules(&BootMapping, IN_USE.take())?,
                not_mapped: &[],
            },
            description: Description::Acpi { rsdp: info.rsdp_addr() },
        })
    }

    fn from_zero_page(page: ZeroPage<'_>) -> Result<Self, TableError> {
        let in_use = IN_USE.take();
        let modules = page.initrd().map_or(0, |initrd| {
            in_use[0] = initrd;
            1
        });
        Ok(Loaded {
            command_line: page.cmdline(&BootMapping, CMDLINE.take())?,
            map: LoaderMap {
                entries: page.memory_map(MEMORY_MAP.take())?,
                in_use: &in_use[..modules],
                not_mapped: &[],
            },
            description: Description::Acpi { rsdp: page.rsdp_addr() },
        })
    }

    #[inline(never)]
    fn from_tree(phys_addr: u64, blob: &'static [u64]) -> Result<Self, TreeError<'static>> {
        let tree = TREE.take();
        tree.fill(blob, phys_addr)?;
        let tree = &*tree;
        Ok(Loaded {
            command_line: tree.command_line,
            map: LoaderMap {
                entries: filled(MEMORY_MAP.take(), &tree.ram),
                in_use: filled(IN_USE.take(), &tree.in_use),
                not_mapped: filled(NOT_MAPPED.take(), &tree.not_mapped),
            },
            description: Description::Tree(tree),
        })
    }
}

/// Returns the device tree at an address, or `None` if no tree begins there that the boot code has
/// mapped.
fn tree_at(phys_addr: u64) -> Option<&'static [u64]> {
    const MEMORY: &BootMapping = &BootMapping;
    let word = |offset| {
        let bytes = MEMORY.bytes(phys_addr.checked_add(offset)?, 4)?;
        bytes.try_into().ok().map(u32::from_be_bytes)
    };
    if word(0)? != device_tree::MAGIC {
        return None;
    }
    let bytes = to_usize(word(device_tree::SIZE_OFFSET)?.into()).next_multiple_of(8);
    let (unaligned, words, rest) =
        // SAFETY: any bytes are valid words.
        unsafe { MEMORY.bytes(phys_addr, bytes)?.align_to::<u64>() };
    (unaligned.is_empty() && rest.is_empty()).then_some(words)
}

/// Writes the ranges to the list, which has room for them. Returns the part that was written.
fn filled(list: &'static mut [MemoryMapEntry], ranges: &[Range]) -> &'static [MemoryMapEntry] {
    const { assert!(MAX_RANGES <= MAX_ENTRIES && MAX_RANGES <= MAX_IN_USE) };
    for (entry, &Range { start, len }) in list.iter_mut().zip(ranges) {
        *entry = MemoryMapEntry { addr: start, size: len, kind: MemoryMapEntry::RAM };
    }
    &list[..ranges.len()]
}

impl fmt::Display for LoaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoaderError::Tables(error) => error.fmt(f),
            LoaderError::Tree(error) => write!(f, "device tree: {error}"),
        }
    }
}
