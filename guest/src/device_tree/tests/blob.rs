//! Writes flattened device trees.

use std::collections::HashMap;

/// A part of the structure block.
#[derive(Clone)]
enum Part {
    Begin(String),
    Property(String, Vec<u8>),
    End,
}

/// A device tree.
#[derive(Clone, Default)]
pub(super) struct Blob {
    parts: Vec<Part>,
    reserved: Vec<(u64, u64)>,
}

impl Blob {
    pub(super) fn reserve(&mut self, start: u64, len: u64) {
        self.reserved.push((start, len));
    }

    pub(super) fn begin(&mut self, name: &str) -> &mut Self {
        self.parts.push(Part::Begin(name.into()));
        self
    }

    pub(super) fn property(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.parts.push(Part::Property(name.into(), value.into()));
        self
    }

    pub(super) fn number(&mut self, name: &str, value: u32) -> &mut Self {
        self.property(name, &value.to_be_bytes())
    }

    pub(super) fn end(&mut self) -> &mut Self {
        self.parts.push(Part::End);
        self
    }

    /// Adds what `write` writes as the last children of the root.
    pub(super) fn add_to_root(&mut self, write: impl FnOnce(&mut Self)) {
        let end = self.parts.pop();
        write(self);
        self.parts.extend(end);
    }

    /// Replaces the value of a property that occurs once.
    pub(super) fn replacing(mut self, property: &str, new: &[u8]) -> Self {
        let is_it = |part: &&mut Part| matches!(part, Part::Property(name, _) if name == property);
        let mut found = self.parts.iter_mut().filter(is_it);
        let Some(Part::Property(_, value)) = found.next() else { panic!("no {property}") };
        *value = new.into();
        assert_eq!(found.count(), 0, "{property}");
        self
    }

    /// Replaces the value of a node's property.
    pub(super) fn replacing_in(mut self, node: &str, property: &str, new: &[u8]) -> Self {
        let is_node = |part: &Part| matches!(part, Part::Begin(name) if name == node);
        let start = self.parts.iter().position(is_node).expect("the node exists");
        let is_it = |part: &&mut Part| matches!(part, Part::Property(name, _) if name == property);
        let Some(Part::Property(_, value)) = self.parts[start..].iter_mut().find(is_it) else {
            panic!("no {property}")
        };
        *value = new.into();
        self
    }

    /// Returns the flattened tree.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (mut structure, mut strings) = (Vec::new(), Vec::new());
        let mut offsets = HashMap::new();
        for part in &self.parts {
            match part {
                Part::Begin(name) => {
                    structure.extend(1u32.to_be_bytes());
                    structure.extend(name.bytes().chain([0]));
                }
                Part::Property(name, value) => {
                    let offset = *offsets.entry(name).or_insert_with(|| {
                        let offset = strings.len();
                        strings.extend(name.bytes().chain([0]));
                        offset
                    });
                    for word in [3, value.len(), offset] {
                        structure.extend(u32::try_from(word).unwrap().to_be_bytes());
                    }
                    structure.extend(value);
                }
                Part::End => structure.extend(2u32.to_be_bytes()),
            }
            structure.resize(structure.len().next_multiple_of(4), 0);
        }
        structure.extend(9u32.to_be_bytes());
        let entries = self.reserved.iter().copied().chain([(0, 0)]);
        let reserved: Vec<u8> =
            entries.flat_map(|(start, len)| [start, len]).flat_map(u64::to_be_bytes).collect();
        let at_structure = 40 + reserved.len();
        let at_strings = at_structure + structure.len();
        let total = at_strings + strings.len();
        let header = [
            0xd00d_feed,
            total,
            at_structure,
            at_strings,
            40,
            17,
            16,
            0,
            strings.len(),
            structure.len(),
        ];
        let header = header.into_iter().flat_map(|word| u32::try_from(word).unwrap().to_be_bytes());
        header.chain(reserved).chain(structure).chain(strings).collect()
    }

    /// Returns the flattened tree as words, as the reader takes it.
    pub(super) fn words(&self) -> Vec<u64> {
        words_of(&self.bytes())
    }
}

/// Returns the words that have these bytes in memory.
pub(super) fn words_of(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(bytes)
    };
    bytes.chunks(8).map(word).collect()
}

/// Returns numbers as cells.
pub(super) fn cells(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}
