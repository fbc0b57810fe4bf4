//! Formats an enum's value by its name on the command line.

use std::fmt;

/// Writes the name that stands for `value` on the command line.
pub(in crate::bench) fn value_name(
    value: &impl clap::ValueEnum,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    value.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
}
