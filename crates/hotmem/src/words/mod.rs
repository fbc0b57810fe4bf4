//! Stores the state of each section and pageblock, and the trees that find them.
//!
//! All other modules name memory by frame numbers and by the handles that a look-up returns
//! ([`SectionRef`], [`Block`]); how the words are stored is private to this module. A look-up is
//! lock-free and needs no reference counts: words stay for as long as the [`Frames`](crate::Frames)
//! live. Absent memory either has words that say so, or has no words, because no memory was ever
//! added there. If a CPU uses a handle after the memory was removed, its claim
//! fails, so it accesses none of the removed memory.
//!
//! | file | content |
//! |---|---|
//! | `section.rs` | the words of a section, claiming and publishing |
//! | `block_state.rs`, `bitmap.rs` | the block state and the frame bitmap of a pageblock |
//! | `frame_word.rs`, `word_bits.rs` | a word of a frame bitmap, and the meaning of its bits |
//! | `run_shape.rs`, `last_run.rs` | which runs of a word suit a request, and where a CPU took one last |
//! | `bitmaps.rs` | where frame bitmaps lie |
//! | `cursor.rs`, `last_freed.rs` | a CPU's pointers to words of frame bitmaps |
//! | `last_change.rs` | the word that a CPU changed last, and a guess of the word's value |
//! | `direct_map.rs` | the mapping by which the engine reaches metadata in memory |
//! | `class.rs`, `zone.rs` | the classes of pageblocks that trees lead to; zones |
//! | `handles.rs` | handles: a section, a pageblock, the pageblocks of a section in a range |
//! | `grain.rs`, `block_grain.rs` | what a divided pageblock is for |
//! | `hint.rs` | conversion between handles and the numbers that CPUs keep as hints |
//! | `search.rs`, `read_count.rs` | finding sections; the number of words that this reads |
//! | `store.rs` | the type that contains all words of an instance |
//! | `look_up.rs`, `announced.rs` | look-ups; the announced ranges |
//! | `directory/` | how words are stored and found |
//! | `node.rs`, `node_cursor.rs` | NUMA nodes; a CPU's pointer to the word that its next frame near a node comes from |

mod announced;
mod bitmap;
mod bitmaps;
mod block_grain;
mod block_state;
mod class;
mod cursor;
mod direct_map;
pub(crate) mod directory;
mod frame_word;
mod grain;
mod handles;
mod hint;
mod last_change;
mod last_freed;
mod last_run;
mod long_run;
mod look_up;
mod node;
mod node_cursor;
mod read_count;
mod run_shape;
mod search;
mod section;
mod store;
mod word_bits;
mod zone;

pub(crate) use announced::Announced;
pub(crate) use bitmap::{FrameBitmap, bitmap_words_of, words_of_run};
pub(crate) use bitmaps::{BitmapFrame, WordPtr};
pub(crate) use block_state::{AtomicBlockState, BlockState, IsolateOutcome};
pub(crate) use class::Class;
pub(crate) use cursor::Cursor;
pub(crate) use direct_map::{DirectMap, REACHABLE_END};
pub use directory::MAX_NODES;
pub(crate) use directory::{
    Entry, Neighbour, NodeIndex, NodeRecord, NodeSet, PATH_LEN, RegionIndex,
};
#[cfg(not(loom))]
pub(crate) use directory::{
    FrameSource, FrameSupply, MAX_PIECE_FRAMES, NeededRuns, NoMemory, PIECE_FRAMES,
    fill_with_zeroes,
};
pub(crate) use grain::{COMMON_RUN, Grain};
pub(crate) use handles::{Block, SectionPart, SectionRef};
pub(crate) use hint::{Hint, NO_HINT, hint_at};
pub(crate) use last_change::LastChange;
pub(crate) use last_freed::LastFreed;
pub(crate) use last_run::LastRun;
pub(crate) use long_run::{LongRun, LongShape};
pub use node::NodeId;
pub(crate) use node::TooManyNodes;
pub(crate) use node_cursor::NodeCursor;
pub(crate) use read_count::ReadCount;
pub(crate) use run_shape::RunShape;
pub(crate) use search::Search;
pub(crate) use section::{BeforePublish, Section, Zeroed};
pub(crate) use store::SectionWords;
pub(crate) use word_bits::FreedBits;
pub use zone::Zone;
