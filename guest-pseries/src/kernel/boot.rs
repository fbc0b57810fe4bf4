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
pub(super) const MOST_PIECES: usize = 16;

/// The size of the buffer for the device tree in words of eight bytes.
const ROOM: usize = 128 << 10;

#[repr(C, align(4096))]
struct Room([u64; ROOM]);

static mut ROOM_FOR_TREE: Room = Room([0; ROOM]);

/// The answer begins with a version of four bytes; the tree after it must be aligned.
const BEFORE_TREE: usize = 4;

/// The description of the machine.
pub(super) struct Machine {
    pub(super) options: Options,
    pub(super) tokens: Tokens,
    pub(super) tree: Tree<'static>,
    /// The PCI host bridge, if there is one.
    pub(super) pci: Option<(Bridge, ConfigTokens)>,
    /// The ranges of boot memory and their nodes.
    pub(super) memory: [(PfnRange, NodeId); MOST_PIECES],
}

/// The reason why the description is refused.
enum Undescribed {
    Tokens(TokenError),
    Tree(TreeError),
    TooManyPieces,
}

/// Negotiates with the firmware and reads the device tree. Does so a second time if the command
/// line, which the first device tree contains, changes what the kernel supports.
pub(super) fn negotiate() -> Machine {
    let usual = Options::default();
    let blob = ask(&usual);
    let line = must("the device tree", rtas::bootargs(blob));
    let options = must("the command line", Options::parse(line));
    let asked = (options.version, options.events);
    let blob = if asked == (usual.version, usual.events) { blob } else { ask(&options) };
    must("the device tree", describe(blob, options))
}

fn describe(blob: &'static [u64], options: Options) -> Result<Machine, Undescribed> {
    let tokens = Tokens::of(blob)?;
    firmware::remember_power_off(tokens.power_off);
    let tree = Tree::parse(blob)?;
    let pci = match Bridge::first(blob)? {
        Some(bridge) => Some((bridge, ConfigTokens::of(blob)?)),
        None => None,
    };
    let mut memory = [(PfnRange::EMPTY, NodeId::ZERO); MOST_PIECES];
    let mut pieces = memory.iter_mut();
    let mut left_over = false;
    tree.boot_memory(|range, node| match pieces.next() {
        Some(piece) => *piece = (range, node),
        None => left_over = true,
    })?;
    if left_over {
        Err(Undescribed::TooManyPieces)
    } else {
        Ok(Machine { options, tokens, tree, pci, memory })
    }
}

/// Negotiates with these options. This overwrites an earlier device tree.
fn ask(options: &Options) -> &'static [u64] {
    let support = support(options.version, options.events);
    let room = (&raw mut ROOM_FOR_TREE).cast::<u8>();
    let offset = size_of::<u64>() - BEFORE_TREE;
    let answered = firmware::client_architecture_support(
        &support,
        room.wrapping_add(offset),
        size_of::<Room>() - offset,
    );
    must("client-architecture-support", answered.map_err(Status));
    // SAFETY: the firmware has written the buffer, and nothing else writes to it while the slice is
    // used: the caller does not use an earlier slice any more.
    unsafe { core::slice::from_raw_parts(room.cast::<u64>().add(1), ROOM - 1) }
}

struct Status(i64);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.0)
    }
}

impl From<TokenError> for Undescribed {
    fn from(error: TokenError) -> Undescribed {
        Undescribed::Tokens(error)
    }
}

impl From<TreeError> for Undescribed {
    fn from(error: TreeError) -> Undescribed {
        Undescribed::Tree(error)
    }
}

impl From<AddrError> for Undescribed {
    fn from(error: AddrError) -> Undescribed {
        Undescribed::Tree(TreeError::Memory(error))
    }
}

impl fmt::Display for Undescribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undescribed::Tokens(error) => error.fmt(f),
            Undescribed::Tree(error) => error.fmt(f),
            Undescribed::TooManyPieces => {
                write!(f, "more than {MOST_PIECES} ranges of boot memory")
            }
        }
    }
}
