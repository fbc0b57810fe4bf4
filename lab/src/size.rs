//! Parses and prints sizes such as `64G`, `128M`, `2MiB` and `4096`.

use hotmem::Bytes;

/// Parses a size: digits and an optional `K`, `M`, `G` or `T` (powers of 1024), with or without a
/// `B` or `iB` after it.
///
/// # Errors
/// The reason why the text is not a size.
pub fn parse(text: &str) -> Result<Bytes, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err("a size is digits and an optional K, M, G or T, such as 64G".into());
    }
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err(format!("unknown unit `{unit}`: use K, M, G or T, such as 64G")),
    };
    let too_large = || format!("`{text}` is more than 64 bits can count");
    let number: u64 = number.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).map(Bytes).ok_or_else(too_large)
}

/// Returns a size with a unit of one letter and without a space, such as `64G`. Command lines and
/// the names of cases contain such sizes.
#[must_use]
pub fn short(size: Bytes) -> String {
    let text = size.to_string();
    text.strip_suffix("iB").or(text.strip_suffix('B')).unwrap_or(&text).to_owned()
}

/// Returns a size in the largest unit that is not larger than the size, such as `60.2G`. It has one
/// decimal, unless it is a whole number of that unit.
#[must_use]
pub fn approximate(size: Bytes) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|&(shift, _)| size.0 >> shift != 0);
    let Some((shift, unit)) = unit else { return size.0.to_string() };
    let decimals = usize::from(!size.0.is_multiple_of(1 << shift));
    format!("{:.decimals$}{unit}", size.0 as f64 / (1_u64 << shift) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_parsed_with_and_without_a_unit() {
        assert_eq!(parse("64G"), Ok(Bytes::gib(64)));
        assert_eq!(parse("4t"), Ok(Bytes::gib(4096)));
        assert_eq!(parse("128MiB"), Ok(Bytes::mib(128)));
        assert_eq!(parse("4096"), Ok(Bytes(4096)));
        assert_eq!(parse("0"), Ok(Bytes(0)));
    }

    #[test]
    fn an_invalid_size_is_refused() {
        for text in ["", "G", "-1G", "1.5G", "64 G", "64X", "99999999999999999999", "17000000T"] {
            assert!(parse(text).is_err(), "`{text}` was parsed as a size");
        }
    }

    #[test]
    fn approximate_rounds_a_size_to_one_decimal() {
        let sizes = [Bytes(512), Bytes::mib(1536), Bytes::gib(4096), Bytes(64_616_979_339)];
        assert_eq!(sizes.map(approximate), ["512", "1.5G", "4T", "60.2G"]);
    }

    #[test]
    fn parsing_the_short_form_returns_the_size() {
        for text in ["64G", "4T", "128M", "4097", "0"] {
            assert_eq!(short(parse(text).unwrap()), text);
        }
    }
}
