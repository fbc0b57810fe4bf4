//! Allocates frames for words and for page tables, and keeps a reserve of each for a kernel that has
//! used up its memory.

mod for_tables;
#[cfg(not(loom))]
mod for_words;
pub(crate) mod table_reserve;
#[cfg(not(loom))]
mod word_reserve;

#[cfg(not(loom))]
pub(crate) use word_reserve::WORD_RESERVE;
#[cfg(not(loom))]
pub(super) use word_reserve::WordReserve;
