//! Answers the commands of QEMU's monitor (QMP) that the lab uses: `qom-set` and `qom-get` of the sizes of
//! the memory device, and those that begin a connection.

use msb_krun_devices::virtio::Mem;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// The path that the lab gives the memory device.
const DEVICE: &str = "/machine/peripheral/vmem0";

/// Answers commands on a thread, which ends when the other end of the socket is closed.
pub(crate) fn serve_on_a_thread(socket: UnixStream, device: Arc<Mutex<Mem>>) {
    thread::spawn(move || serve(&socket, &device));
}

fn serve(mut socket: &UnixStream, device: &Mutex<Mem>) -> std::io::Result<()> {
    writeln!(socket, "{}", json!({ "QMP": {} }))?;
    for line in BufReader::new(socket).lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(message) => answer(&message, device),
            Err(error) => Err(error.to_string()),
        };
        let answer = match answer {
            Ok(value) => json!({ "return": value }),
            Err(reason) => json!({ "error": { "class": "GenericError", "desc": reason } }),
        };
        writeln!(socket, "{answer}")?;
    }
    Ok(())
}

fn answer(message: &Value, device: &Mutex<Mem>) -> Result<Value, String> {
    let command = message["execute"].as_str().unwrap_or_default();
    let arguments = &message["arguments"];
    let property = (arguments["path"].as_str(), arguments["property"].as_str());
    // A panic of the device on another thread leaves it as it is.
    let mut device = device.lock().unwrap_or_else(PoisonError::into_inner);
    match (command, property) {
        ("qmp_capabilities" | "query-status", _) => Ok(json!({})),
        ("qom-get", (Some(DEVICE), Some("size"))) => {
            Ok(device.state_snapshot().plugged_size.into())
        }
        ("qom-set", (Some(DEVICE), Some("requested-size"))) => {
            let size = arguments["value"].as_u64().ok_or("the value is not a size")?;
            // The device rounds a size that it cannot have.
            match device.set_requested_size(size) {
                requested if requested == size => Ok(json!({})),
                requested => Err(format!("the device requests {requested} instead")),
            }
        }
        _ => Err(format!("the command {message} is not known")),
    }
}
