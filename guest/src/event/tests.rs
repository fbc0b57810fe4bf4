//! Events as they are written.

use super::*;

#[test]
fn events_are_json_objects_of_one_line() {
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
