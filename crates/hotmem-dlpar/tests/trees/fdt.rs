//! Encodes flattened device trees (Devicetree Specification 0.4, chapter 5) in a naive way.

use crate::common::cells;

/// A node's name, properties and children.
pub(crate) struct Node<'a>(
    pub(crate) &'a str,
    pub(crate) &'a [(&'a str, &'a [u8])],
    pub(crate) &'a [Node<'a>],
);

const HEADER_BYTES: usize = 40;
/// The end of the list of reserved memory.
const NO_RESERVATION: [u8; 16] = [0; 16];

/// Returns the flattened tree under this root.
pub(crate) fn flatten(root: &Node<'_>) -> Vec<u8> {
    let (mut structure, mut strings) = (Vec::new(), Vec::new());
    write_node(root, &mut structure, &mut strings);
    structure.extend(cells(&[9]));
    let structure_at = HEADER_BYTES + NO_RESERVATION.len();
    let strings_at = structure_at + structure.len();
    let end = strings_at + strings.len();
    let [structure_at, strings_at, end] = [structure_at, strings_at, end].map(|at| at as u32);
    let reserved_at = HEADER_BYTES as u32;
    let lens = [strings.len() as u32, structure.len() as u32];
    let mut blob = cells(&[0xd00d_feed, end, structure_at, strings_at, reserved_at, 17, 16, 0]);
    blob.extend(cells(&lens));
    [blob, NO_RESERVATION.to_vec(), structure, strings].concat()
}

fn write_node(
    Node(name, properties, children): &Node<'_>,
    out: &mut Vec<u8>,
    strings: &mut Vec<u8>,
) {
    out.extend(cells(&[1]));
    out.extend(name.bytes());
    out.push(0);
    align(out);
    for (name, value) in *properties {
        out.extend(cells(&[3, value.len() as u32, strings.len() as u32]));
        out.extend(*value);
        align(out);
        strings.extend(name.bytes());
        strings.push(0);
    }
    for child in *children {
        write_node(child, out, strings);
    }
    out.extend(cells(&[2]));
}

fn align(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Returns the bytes of the tree as 64-bit words, which are aligned.
pub(crate) fn words(blob: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_ne_bytes(word)
    };
    blob.chunks(8).map(word).collect()
}
