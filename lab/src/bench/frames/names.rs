//! Names of values.

use std::fmt;

/// Writes a value as it is typed on the command line.
pub(in crate::bench) fn value_name(
    value: &impl clap::ValueEnum,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    value.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
}
