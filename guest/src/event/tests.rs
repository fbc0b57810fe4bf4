//! Tests of the encoding of events.

use super::*;

#[test]
fn an_event_is_a_json_object_in_one_line() {
    let boot =
        Event::Boot { ms: 3, boot_memory: Bytes::mib(128), cpus: 2, hot_pluggable: Bytes::gib(1) };
    assert_eq!(
        boot.to_string(),
        r#"{"event":"boot","ms":3,"boot_memory":134217728,"cpus":2,"hot_pluggable":1073741824}"#
    );
    let why = "a \"quoted\"\\\n line";
    let (target, plugged) = (Bytes(1), Bytes(2));
    let pending = Event::Pending { device: 3, node: 4, target, plugged, why: &why };
    assert_eq!(
        pending.to_string(),
        r#"{"event":"pending","target":1,"plugged":2,"why":"a \"quoted\"\\\u000a line","device":3,"node":4}"#
    );
}

#[test]
fn a_resize_contains_the_zone_if_one_was_queried() {
    let mut info = hotmem::ZoneInfo::default();
    (info.online, info.described_holes) = (512, 1);
    let zone = ZoneReport { name: "kernel", info, asked: 4, contiguous: 3 };
    let resized = |zone| {
        let bytes = Bytes(8);
        Event::Resized {
            device: 0,
            node: 1,
            node_online: bytes,
            target: bytes,
            plugged: bytes,
            online: bytes,
            free: bytes,
            requests: 2,
            us: 3,
            interrupted: true,
            zone,
        }
    };
    let text = resized(None).to_string();
    assert!(text.ends_with(r#""interrupted":true,"zone":null}"#), "{text}");
    let text = resized(Some(zone)).to_string();
    let expected = r#""zone":{"name":"kernel","spanned":0,"online":2097152,"described_holes":4096,"asked":4,"contiguous":3}}"#;
    assert!(text.ends_with(expected), "{text}");
}

/// The page has every event, with its fields in their order.
#[test]
fn the_page_on_the_guest_has_every_event() {
    let page = include_str!("../../../docs/guest.md");
    let sources = concat!(include_str!("json.rs"), include_str!("cxl.rs"));
    let templates =
        sources.split(r#""event":""#).skip(1).map(|rest| rest.split("\"#").next().unwrap());
    let mut events = 0;
    for template in templates {
        let (name, fields) = template.split_once('"').unwrap();
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("no row of {name}"));
        let mut in_row = row.split('|').nth(2).unwrap().split('`').skip(1).step_by(2);
        for (end, _) in fields.match_indices("\":") {
            let (_, field) = fields[..end].rsplit_once('"').unwrap();
            assert!(in_row.any(|written| written == field), "{name}: {field}");
        }
        events += 1;
    }
    assert!(events > 40, "{events}");
}
