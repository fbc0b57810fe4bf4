//! Encodes events as JSON.

use super::Event;
use super::json_text::JsonText;
use core::fmt;

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Event::Boot { ms, boot_memory, cpus, hot_pluggable } => write!(
                f,
                r#"{{"event":"boot","ms":{ms},"boot_memory":{},"cpus":{cpus},"hot_pluggable":{}}}"#,
                boot_memory.0, hot_pluggable.0
            ),
            Event::Device {
                device,
                node,
                block_size,
                addr,
                region_size,
                requested,
                plugged,
                features,
                transport,
                interrupts,
            } => write!(
                f,
                r#"{{"event":"device","kind":"virtio-mem","block_size":{},"addr":{addr},"region_size":{},"requested":{},"plugged":{},"features":"{features:#x}","device":{device},"node":{node},"transport":"{transport}","interrupts":"{interrupts}"}}"#,
                block_size.0, region_size.0, requested.0, plugged.0
            ),
            Event::Resized {
                device,
                node,
                node_online,
                target,
                plugged,
                online,
                free,
                requests,
                us,
                interrupted,
                zone,
            } => {
                write!(
                    f,
                    r#"{{"event":"resized","target":{},"plugged":{},"online":{},"free":{},"requests":{requests},"us":{us},"device":{device},"node":{node},"node_online":{},"interrupted":{interrupted},"zone":"#,
                    target.0, plugged.0, online.0, free.0, node_online.0
                )?;
                match zone {
                    Some(zone) => write!(f, "{zone}}}"),
                    None => f.write_str("null}"),
                }
            }
            Event::Pending { device, node, target, plugged, why } => write!(
                f,
                r#"{{"event":"pending","target":{},"plugged":{},"why":"{}","device":{device},"node":{node}}}"#,
                target.0,
                plugged.0,
                JsonText(why)
            ),
            Event::Removed { device, node } => {
                write!(f, r#"{{"event":"removed","device":{device},"node":{node}}}"#)
            }
            Event::DimmAdded { slot, addr, size, node, online, us } => write!(
                f,
                r#"{{"event":"dimm_added","slot":{slot},"addr":{addr},"size":{},"node":{node},"online":{},"us":{us}}}"#,
                size.0, online.0
            ),
            Event::LateAdded { size, online, us } => write!(
                f,
                r#"{{"event":"late_added","size":{},"online":{},"us":{us}}}"#,
                size.0, online.0
            ),
            Event::LateRemoved { size, online, us } => write!(
                f,
                r#"{{"event":"late_removed","size":{},"online":{},"us":{us}}}"#,
                size.0, online.0
            ),
            Event::DimmRefused { slot, why } => {
                write!(f, r#"{{"event":"dimm_refused","slot":{slot},"why":"{}"}}"#, JsonText(why))
            }
            Event::DimmRemoved { slot, size, online } => write!(
                f,
                r#"{{"event":"dimm_removed","slot":{slot},"size":{},"online":{}}}"#,
                size.0, online.0
            ),
            Event::DimmKept { slot, why } => {
                write!(f, r#"{{"event":"dimm_kept","slot":{slot},"why":"{}"}}"#, JsonText(why))
            }
            Event::BadFrame { addr, was_in_use } => {
                write!(f, r#"{{"event":"bad_frame","addr":{addr},"was_in_use":{was_in_use}}}"#)
            }
            Event::Entropy { transport, interrupts, interrupted, bytes, us } => write!(
                f,
                r#"{{"event":"entropy","transport":"{transport}","interrupts":"{interrupts}","interrupted":{interrupted},"bytes":{},"us":{us}}}"#,
                bytes.0
            ),
            Event::Balloon { transport, interrupts, features, reports_queue } => {
                write!(
                    f,
                    r#"{{"event":"balloon","transport":"{transport}","interrupts":"{interrupts}","features":"{features:#x}","reports_queue":"#
                )?;
                match reports_queue {
                    Some(number) => write!(f, "{number}}}"),
                    None => f.write_str("null}"),
                }
            }
            Event::Inflated { target, held } => {
                write!(f, r#"{{"event":"inflated","target":{},"held":{}}}"#, target.0, held.0)
            }
            Event::InflationPending { target, held, why } => write!(
                f,
                r#"{{"event":"inflation_pending","target":{},"held":{},"why":"{}"}}"#,
                target.0,
                held.0,
                JsonText(why)
            ),
            Event::BalloonLost { why } => {
                write!(f, r#"{{"event":"balloon_lost","why":"{}"}}"#, JsonText(why))
            }
            Event::Reported { bytes, requests, hinted } => write!(
                f,
                r#"{{"event":"reported","bytes":{},"requests":{requests},"hinted":{}}}"#,
                bytes.0, hinted.0
            ),
            Event::Freed { bytes, us } => {
                write!(f, r#"{{"event":"freed","bytes":{},"us":{us}}}"#, bytes.0)
            }
            Event::Touched { bytes, us } => {
                write!(f, r#"{{"event":"touched","bytes":{},"us":{us}}}"#, bytes.0)
            }
            Event::Verified { bytes } => {
                write!(f, r#"{{"event":"verified","bytes":{}}}"#, bytes.0)
            }
            Event::KnownZero { zero, other } => {
                write!(f, r#"{{"event":"known_zero","zero":{},"other":{}}}"#, zero.0, other.0)
            }
            Event::Faulted { cpus, frames, us, reported, refaulted } => write!(
                f,
                r#"{{"event":"faulted","cpus":{cpus},"frames":{frames},"us":{us},"reported":{},"refaulted":{}}}"#,
                reported.0, refaulted.0
            ),
            Event::Heap { objects, mapped, moved } => write!(
                f,
                r#"{{"event":"heap","objects":{objects},"mapped":{},"moved":{}}}"#,
                mapped.0, moved.0
            ),
            Event::Nvdimm { device, addr, size } => write!(
                f,
                r#"{{"event":"nvdimm","device":{device},"addr":{addr},"size":{}}}"#,
                size.0
            ),
            Event::Bound { device, frames, map, saved, written, describe_us, us } => write!(
                f,
                r#"{{"event":"bound","device":{device},"frames":{frames},"map":{},"saved":{},"written":{},"describe_us":{describe_us},"us":{us}}}"#,
                map.0, saved.0, written.0
            ),
            Event::Checked { device, descriptors, data } => write!(
                f,
                r#"{{"event":"checked","device":{device},"descriptors":{descriptors},"data":{data}}}"#
            ),
            Event::Reconfigured { device, mode, online, free, us } => write!(
                f,
                r#"{{"event":"reconfigured","device":{device},"mode":"{mode}","online":{},"free":{},"us":{us}}}"#,
                online.0, free.0
            ),
            Event::Unbound { device, us } => {
                write!(f, r#"{{"event":"unbound","device":{device},"us":{us}}}"#)
            }
            Event::Cxl(event) => event.fmt(f),
            Event::Written { pages, writes, moved, dirty, clean } => write!(
                f,
                r#"{{"event":"written","pages":{pages},"writes":{writes},"moved":{},"dirty":{dirty},"clean":{clean}}}"#,
                moved.0
            ),
            Event::Pinned { addr, other, pinned, left } => write!(
                f,
                r#"{{"event":"pinned","addr":{addr},"other":{other},"pinned":{},"left":{}}}"#,
                pinned.0, left.0
            ),
            Event::Scanned { runs, blocks, used, us } => write!(
                f,
                r#"{{"event":"scanned","runs":{runs},"blocks":{blocks},"used":{},"us":{us}}}"#,
                used.0
            ),
            Event::HandOver { plugged } => {
                write!(f, r#"{{"event":"hand_over","plugged":{}}}"#, plugged.0)
            }
            Event::Metadata { written } => {
                write!(f, r#"{{"event":"metadata","written":{}}}"#, written.0)
            }
        }
    }
}
