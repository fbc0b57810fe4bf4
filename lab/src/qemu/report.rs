//! Parses the guest's output on its console: TAP, and one JSON object on a line for each event.

use super::Event;

/// A line of the guest's output.
#[derive(Clone, PartialEq, Debug)]
pub enum Report {
    /// An event in the guest.
    Event(Event),
    /// A test point that passed, with its number and description.
    Passed(String),
    /// A test point that failed, with its number and description.
    Failed(String),
    /// The guest ended its tests early, for this reason.
    BailOut(String),
    /// The last line: whether all test points passed.
    Verdict(bool),
    /// Any other line, such as TAP's version and plan.
    Other,
}

impl Report {
    /// Parses a line.
    ///
    /// # Errors
    /// The line begins like an event, and cannot be parsed.
    pub fn parse(line: &str) -> Result<Report, serde_json::Error> {
        let line = line.trim_end();
        if line.starts_with('{') {
            return serde_json::from_str(line).map(Report::Event);
        }
        let after = |prefix| line.strip_prefix(prefix).map(str::to_owned);
        Ok(if let Some(point) = after("ok ") {
            Report::Passed(point)
        } else if let Some(point) = after("not ok ") {
            Report::Failed(point)
        } else if let Some(reason) = after("Bail out! ") {
            Report::BailOut(reason)
        } else {
            match line {
                "hotmem: PASS" => Report::Verdict(true),
                "hotmem: FAIL" => Report::Verdict(false),
                _ => Report::Other,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::event::{GuestTime, Zone, ZoneName},
        *,
    };

    #[test]
    fn every_kind_of_line_is_parsed() {
        let cases = [
            ("TAP version 14\r", Report::Other),
            ("ok 2 - plug 64GiB", Report::Passed("2 - plug 64GiB".into())),
            ("not ok 3 - unplug", Report::Failed("3 - unplug".into())),
            ("Bail out! watchdog: unplug", Report::BailOut("watchdog: unplug".into())),
            ("1..3", Report::Other),
            ("hotmem: PASS\r", Report::Verdict(true)),
            ("hotmem: FAIL", Report::Verdict(false)),
            (
                r#"{"event":"touched","bytes":4096,"us":3}"#,
                Report::Event(Event::Touched { bytes: 4096, time: GuestTime::Us(3) }),
            ),
            (r#"{"event":"tomorrow","x":[1]}"#, Report::Event(Event::Unknown)),
            (
                r#"{"event":"resized","target":8,"plugged":8,"online":9,"free":7,"requests":1,"us":464,"new":true}"#,
                Report::Event(Event::Resized {
                    target: 8,
                    plugged: 8,
                    online: 9,
                    free: 7,
                    requests: 1,
                    us: 464,
                    device: 0,
                    node: 0,
                    node_online: 0,
                    interrupted: false,
                    zone: None,
                }),
            ),
            (
                r#"{"event":"touched","bytes":256,"ns":7}"#,
                Report::Event(Event::Touched { bytes: 256, time: GuestTime::Ns(7) }),
            ),
            (
                r#"{"event":"scanned","runs":2,"blocks":9,"used":8192,"us":3}"#,
                Report::Event(Event::Scanned { runs: 2, blocks: 9, used: 8192, us: 3 }),
            ),
        ];
        for (line, report) in cases {
            assert_eq!(Report::parse(line).unwrap(), report, "{line}");
        }
    }

    #[test]
    fn the_zone_of_a_resize_is_parsed() {
        let line = r#"{"event":"resized","target":8,"plugged":8,"online":9,"free":7,"requests":1,"us":4,"zone":{"name":"kernel","spanned":8,"online":6,"described_holes":2,"asked":4,"contiguous":3}}"#;
        let Ok(Report::Event(Event::Resized { zone: Some(zone), .. })) = Report::parse(line) else {
            panic!("no zone in {line}");
        };
        let name = ZoneName::Kernel;
        let (spanned, online, described_holes) = (8, 6, 2);
        let (queries, contiguous_answers) = (4, 3);
        let expected = Zone { name, spanned, online, described_holes, queries, contiguous_answers };
        assert_eq!((zone, zone.to_string().as_str()), (expected, "kernel 3/4"));
    }

    #[test]
    fn an_incomplete_event_is_an_error() {
        for line in [
            "{",
            r#"{"event":"touched"}"#,
            r#"{"bytes":4096}"#,
            r#"{"event":"verified","bytes":-1}"#,
        ] {
            assert!(Report::parse(line).is_err(), "{line}");
        }
    }
}
