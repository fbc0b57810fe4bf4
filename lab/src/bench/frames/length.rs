//! The length of an allocation.

use std::{fmt, str::FromStr};

/// The length of an allocation. It is a constant of the compiler where a kernel has a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// 2^order frames, aligned to their size, as a buddy allocator allocates them.
    Order(u32),
    /// This many frames, wherever they fit.
    Frames(u64),
}

impl Length {
    /// One frame.
    pub const FRAME: Length = Length::Order(0);
    /// A huge page of 2 MiB.
    pub const HUGE_PAGE: Length = Length::Order(9);

    /// Returns the number of frames.
    #[inline(always)]
    #[must_use]
    pub const fn frames(self) -> u64 {
        match self {
            Length::Order(order) => 1 << order,
            Length::Frames(frames) => frames,
        }
    }

    /// Returns the smallest order of which an allocation has as many frames.
    #[inline(always)]
    #[must_use]
    pub const fn order(self) -> u32 {
        match self {
            Length::Order(order) => order,
            Length::Frames(frames) => frames.next_power_of_two().trailing_zeros(),
        }
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Length::Order(order) => write!(f, "order{order}"),
            Length::Frames(frames) => write!(f, "{frames}frames"),
        }
    }
}

impl FromStr for Length {
    type Err = &'static str;

    /// Parses `order3`, or `12frames`. The longest allocation is a huge page.
    fn from_str(text: &str) -> Result<Length, &'static str> {
        let order = text.strip_prefix("order").and_then(|order| order.parse().ok());
        let frames = text.strip_suffix("frames").and_then(|frames| frames.parse().ok());
        let length = order.map(Length::Order).or(frames.map(Length::Frames));
        let is_valid = |length: &Length| match *length {
            Length::Order(order) => order <= 9,
            Length::Frames(frames) => (1..=512).contains(&frames),
        };
        length
            .filter(is_valid)
            .ok_or("a length is `order0` to `order9`, or `1frames` to `512frames`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_parsed_as_it_is_shown() {
        for length in [Length::FRAME, Length::HUGE_PAGE, Length::Frames(1), Length::Frames(512)] {
            assert_eq!(length.to_string().parse(), Ok(length));
        }
        for text in ["order10", "0frames", "513frames", "3", "order", "order-1"] {
            assert!(text.parse::<Length>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_order_of_a_length_is_the_smallest_that_holds_it() {
        let order = |frames| Length::Frames(frames).order();
        assert_eq!([1, 2, 3, 12, 200, 512].map(order), [0, 1, 2, 4, 8, 9]);
        assert_eq!(Length::Order(3).frames(), 8);
    }
}
