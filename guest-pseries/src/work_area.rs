//! Reads the work area of `ibm,configure-connector` (PAPR 13.5.3.5), in which the firmware returns
//! a connector's device tree node part by part.

/// The work area, which is one frame. All its words are big-endian.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct WorkArea(pub [u8; 4096]);

/// A property in the work area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeProperty<'a> {
    /// The property's name, without the NUL.
    pub name: &'a [u8],
    /// The property's value.
    pub value: &'a [u8],
}

/// The numbers of words of the work area.
const NAME_OFFSET: usize = 2;
const VALUE_LEN: usize = 3;
const VALUE_OFFSET: usize = 4;

impl Default for WorkArea {
    fn default() -> WorkArea {
        WorkArea::new()
    }
}

impl WorkArea {
    /// Makes an area of zeros.
    #[must_use]
    pub const fn new() -> WorkArea {
        WorkArea([0; 4096])
    }

    /// Prepares the area for the first call for `connector`.
    pub fn begin(&mut self, connector: u32) {
        self.set_word(0, connector);
        self.set_word(1, 0);
    }

    /// Returns the property that the last call has returned, or `None` if the property does not lie
    /// within the area.
    #[must_use]
    pub fn property(&self) -> Option<TreeProperty<'_>> {
        let name = self.0.get(self.offset(NAME_OFFSET)..)?;
        let name = name.split(|&byte| byte == 0).next().filter(|found| found.len() < name.len())?;
        let start = self.offset(VALUE_OFFSET);
        let value = self.0.get(start..start.checked_add(self.offset(VALUE_LEN))?)?;
        Some(TreeProperty { name, value })
    }

    fn offset(&self, word: usize) -> usize {
        usize::try_from(self.word(word)).unwrap_or(usize::MAX)
    }

    fn word(&self, number: usize) -> u32 {
        let (words, _) = self.0.as_chunks();
        words.get(number).map_or(0, |&word| u32::from_be_bytes(word))
    }

    /// Writes a word, for the kernel and for simulated firmware.
    pub fn set_word(&mut self, number: usize, value: u32) {
        let (words, _) = self.0.as_chunks_mut();
        if let Some(word) = words.get_mut(number) {
            *word = value.to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn area_with(name: &[u8], value: &[u8]) -> WorkArea {
        let mut area = WorkArea::new();
        area.set_word(NAME_OFFSET, 100);
        area.set_word(VALUE_LEN, u32::try_from(value.len()).unwrap());
        // QEMU's offsets of values are not multiples of four.
        area.set_word(VALUE_OFFSET, 201);
        area.0[100..100 + name.len()].copy_from_slice(name);
        area.0[201..201 + value.len()].copy_from_slice(value);
        area
    }

    #[test]
    fn a_property_is_read() {
        let area = area_with(b"reg\0", &[1, 2, 3]);
        let property = area.property().unwrap();
        assert_eq!((property.name, property.value), (&b"reg"[..], &[1, 2, 3][..]));
    }

    #[test]
    fn a_property_outside_the_area_is_none() {
        for (word, value) in [
            (NAME_OFFSET, 4096),
            (NAME_OFFSET, u32::MAX),
            (VALUE_LEN, 4096 - 200),
            (VALUE_LEN, u32::MAX),
            (VALUE_OFFSET, 4094),
            (VALUE_OFFSET, u32::MAX),
        ] {
            let mut area = area_with(b"reg\0", &[1, 2, 3]);
            area.set_word(word, value);
            assert_eq!(area.property(), None, "word {word} is {value}");
        }
        let mut endless = area_with(b"reg", &[]);
        endless.0[100..].fill(b'x');
        assert_eq!(endless.property(), None);
    }

    proptest! {
        #[test]
        fn arbitrary_areas_do_not_panic(words in prop::array::uniform8(any::<u32>())) {
            let mut area = WorkArea::new();
            for (number, word) in words.into_iter().enumerate() {
                area.set_word(number, word);
            }
            let _ = area.property();
        }
    }
}
