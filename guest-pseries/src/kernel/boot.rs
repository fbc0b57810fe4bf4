//! Negotiates with the firmware, and reads the device tree.

use super::exit::must;
use super::firmware;
use core::fmt;
use hotmem::{AddrError, NodeId, PfnRange};
use hotmem_dlpar::{Tree, TreeError};
use hotmem_guest_pseries::options::Options;
use hotmem_guest_pseries::pci::{Bridge, ConfigTokens};
use hotmem_guest_pseries::rtas::{self, TokenError, Tokens};
use hotmem_guest_pseries::support::support;

/// The maximal number of ranges of boot memory.
pub(super) const MAX_BOOT_RANGES: usize = 16;

/// The size of the buffer for the device tree in words of eight bytes.
const BUFFER_WORDS: usize = 128 << 10;

#[repr(C, align(4096))]
struct TreeBuffer([u64; BUFFER_WORDS]);

static mut TREE_BUFFER: TreeBuffer = TreeBuffer([0; BUFFER_WORDS]);

/// The size of the version with which the firmware's answer begins. The device tree follows the
/// version, and must be aligned to a word.
const VERSION_BYTES: usize = 4;

/// The description of the machine.
pub(super) struct Machine {
    pub(super) options: Options,
    pub(super) tokens: Tokens,
    pub(super) tree: Tree<'static>,
    /// The PCI host bridge, if there is one.
    pub(super) pci: Option<(Bridge, ConfigTokens)>,
    /// The ranges of boot memory and their nodes.
    pub(super) memory: [(PfnRange, NodeId); MAX_BOOT_RANGES],
}

/// The reason why the device tree is refused.
enum DescriptionError {
    Tokens(TokenError),
    Tree(TreeError),
    TooManyRanges,
}

/// Negotiates with the firmware and reads the device tree. The device tree contains the command
/// line. If the command line changes the options that the kernel negotiates, negotiates and reads a
/// second time.
pub(super) fn negotiate() -> Machine {
    let defaults = Options::default();
    let blob = negotiate_options(&defaults);
    let line = must("the device tree", rtas::bootargs(blob));
    let options = must("the command line", Options::parse(line));
    let requested = (options.version, options.events);
    let blob = if requested == (defaults.version, defaults.events) {
        blob
    } else {
        negotiate_options(&options)
    };
    must("the device tree", parse_machine(blob, options))
}

fn parse_machine(blob: &'static [u64], options: Options) -> Result<Machine, DescriptionError> {
    let tokens = Tokens::of(blob)?;
    firmware::remember_power_off(tokens.power_off);
    let tree = Tree::parse(blob)?;
    let pci = match Bridge::first(blob)? {
        Some(bridge) => Some((bridge, ConfigTokens::of(blob)?)),
        None => None,
    };
    let mut memory = [(PfnRange::EMPTY, NodeId::ZERO); MAX_BOOT_RANGES];
    let mut ranges = memory.iter_mut();
    let mut has_too_many_ranges = false;
    tree.boot_memory(|range, node| match ranges.next() {
        Some(entry) => *entry = (range, node),
        None => has_too_many_ranges = true,
    })?;
    if has_too_many_ranges {
        Err(DescriptionError::TooManyRanges)
    } else {
        Ok(Machine { options, tokens, tree, pci, memory })
    }
}

/// Negotiates with the firmware for `options`, and returns the device tree. Overwrites the device
/// tree of an earlier call.
fn negotiate_options(options: &Options) -> &'static [u64] {
    let support = support(options.version, options.events);
    let buffer = (&raw mut TREE_BUFFER).cast::<u8>();
    let offset = size_of::<u64>() - VERSION_BYTES;
    // SAFETY: the bytes are the buffer's, and initialised. Only another call of this function uses the
    // buffer, and `negotiate` does not use the earlier slice after that.
    let bytes = unsafe { core::slice::from_raw_parts_mut(buffer, size_of::<TreeBuffer>()) };
    let answered = firmware::client_architecture_support(&support, &mut bytes[offset..]);
    must("client-architecture-support", answered.map_err(Status));
    // SAFETY: the firmware has written the buffer. Only another call of this function writes to the
    // buffer, and `negotiate` does not use the earlier slice after that.
    unsafe { core::slice::from_raw_parts(buffer.cast::<u64>().add(1), BUFFER_WORDS - 1) }
}

struct Status(i64);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.0)
    }
}

impl From<TokenError> for DescriptionError {
    fn from(error: TokenError) -> DescriptionError {
        DescriptionError::Tokens(error)
    }
}

impl From<TreeError> for DescriptionError {
    fn from(error: TreeError) -> DescriptionError {
        DescriptionError::Tree(error)
    }
}

impl From<AddrError> for DescriptionError {
    fn from(error: AddrError) -> DescriptionError {
        DescriptionError::Tree(TreeError::Memory(error))
    }
}

impl fmt::Display for DescriptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DescriptionError::Tokens(error) => error.fmt(f),
            DescriptionError::Tree(error) => error.fmt(f),
            DescriptionError::TooManyRanges => {
                write!(f, "more than {MAX_BOOT_RANGES} ranges of boot memory")
            }
        }
    }
}
