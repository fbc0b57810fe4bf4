//! The features of a virtio device, as events have them.

use serde::{Deserialize, Deserializer, de::Error};

/// The negotiated features of a device, a bit for each. An event has them as text: `"0x100000001"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(pub u64);

impl<'de> Deserialize<'de> for Features {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.strip_prefix("0x").ok_or_else(|| D::Error::custom("no 0x"))?;
        u64::from_str_radix(digits, 16).map(Features).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_hexadecimal_text() {
        let parse = |text| serde_json::from_str::<Features>(text).ok();
        assert_eq!(parse(r#""0x100000001""#), Some(Features(1 << 32 | 1)));
        assert_eq!(parse(r#""12""#), None);
        assert_eq!(parse("12"), None);
    }
}
