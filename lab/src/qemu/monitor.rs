//! Controls a guest's memory by QEMU's monitor (QMP).

use super::{Error, config::device_path};
use hotmem::Bytes;
use qapi::{Any, Command, ExecuteError, Qmp, Stream, qmp};
use std::{
    io::{self, BufRead, BufReader, BufWriter},
    os::unix::net::UnixStream,
    time::Duration,
};

/// A connection to QEMU's monitor, ready for commands.
pub(super) struct Monitor {
    // The writer is buffered, because the library writes each token of a command by itself, and
    // QEMU wakes for each write.
    qmp: Qmp<Stream<BufReader<UnixStream>, BufWriter<UnixStream>>>,
}

impl Monitor {
    /// Connects to QEMU's monitor. Each answer must arrive within `patience`.
    pub(super) fn new(socket: UnixStream, patience: Duration) -> Result<Monitor, Error> {
        let open = || -> io::Result<_> {
            socket.set_read_timeout(Some(patience))?;
            let mut reader = BufReader::new(socket.try_clone()?);
            if reader.fill_buf()?.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(Qmp::new(Stream::new(reader, BufWriter::new(socket))))
        };
        let mut qmp = open().map_err(Error::Monitor)?;
        qmp.handshake().map_err(|error| command_error("qmp_capabilities", error))?;
        Ok(Monitor { qmp })
    }

    /// Sets the requested size of a device to `target`.
    pub(super) fn request(&mut self, device: usize, target: Bytes) -> Result<(), Error> {
        let path = device_path(device);
        let name = format!("qom-set {path} requested-size {target}");
        let property = "requested-size".into();
        self.execute(&qmp::qom_set { path, property, value: target.0.into() }, &name)?;
        Ok(())
    }

    /// Returns the size that a device has plugged.
    pub(super) fn size(&mut self, device: usize) -> Result<Bytes, Error> {
        let path = device_path(device);
        let name = format!("qom-get {path} size");
        let size: Any = self.execute(&qmp::qom_get { path, property: "size".into() }, &name)?;
        size.as_u64().map(Bytes).ok_or_else(|| Error::Refused {
            command: name,
            reason: format!("the answer {size} is not a size"),
        })
    }

    /// Executes a line in QEMU's human monitor and returns the output.
    pub(super) fn line(&mut self, line: &str) -> Result<String, Error> {
        let command = qmp::human_monitor_command { cpu_index: None, command_line: line.to_owned() };
        self.execute(&command, line)
    }

    /// Executes a command and drops all events that arrived before the answer.
    fn execute<C: Command>(&mut self, command: &C, name: &str) -> Result<C::Ok, Error> {
        let answer = self.qmp.execute(command).map_err(|error| command_error(name, error));
        self.qmp.events().for_each(drop);
        answer
    }
}

/// Converts the error of a command.
fn command_error(command: impl ToString, error: ExecuteError) -> Error {
    match error {
        ExecuteError::Qapi(error) => {
            Error::Refused { command: command.to_string(), reason: error.desc }
        }
        ExecuteError::Io(error) => Error::Monitor(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience;
    use std::{
        io::{ErrorKind, Write},
        thread,
    };

    const GREETING: &str = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}"#;

    /// Returns a socket whose other end sends these answers. The first is the greeting, and each
    /// further one answers a command.
    fn simulated_qemu(answers: &'static [&'static str]) -> UnixStream {
        let (monitor_end, qemu_end) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut commands = BufReader::new(qemu_end.try_clone().unwrap()).lines();
            let mut qemu_end = qemu_end;
            for (n, answer) in answers.iter().enumerate() {
                if n > 0 && commands.next().is_none() {
                    return;
                }
                writeln!(qemu_end, "{answer}\r").unwrap();
            }
        });
        monitor_end
    }

    fn monitor(answers: &'static [&'static str]) -> Result<Monitor, Error> {
        Monitor::new(simulated_qemu(answers), patience())
    }

    #[test]
    fn an_event_before_the_answer_is_skipped() {
        let event = r#"{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "MEMORY_DEVICE_SIZE_CHANGE", "data": {"id": "vmem0", "size": 5, "qom-path": "/machine/peripheral/vmem0"}}"#;
        let answers: &'static [&'static str] = Box::leak(Box::new([
            GREETING,
            r#"{"return": {}}"#,
            Box::leak(format!("{event}\r\n{{\"return\": 68719476736}}").into_boxed_str()),
        ]));
        assert_eq!(monitor(answers).unwrap().size(0).unwrap(), Bytes::gib(64));
    }

    #[test]
    fn a_refusal_has_the_reason_from_qemu() {
        let error = r#"{"error": {"class": "GenericError", "desc": "has to be multiples"}}"#;
        let answers: &'static [&'static str] =
            Box::leak(Box::new([GREETING, r#"{"return": {}}"#, error]));
        let refused = monitor(answers).unwrap().request(0, Bytes(1)).unwrap_err();
        assert!(refused.to_string().contains("has to be multiples"), "{refused}");
    }

    #[test]
    fn a_monitor_that_sends_nothing_or_is_closed_is_an_error() {
        let (silent, _open) = UnixStream::pair().unwrap();
        let timeout = Monitor::new(silent, Duration::from_millis(10)).map(|_| ());
        assert!(
            matches!(timeout, Err(Error::Monitor(error)) if error.kind() == ErrorKind::WouldBlock)
        );
        let closed = &[GREETING, r#"{"return": {}}"#];
        assert!(matches!(monitor(closed).unwrap().size(0), Err(Error::Monitor(_))));
        assert!(matches!(monitor(&[]), Err(Error::Monitor(_))));
    }

    #[test]
    fn an_answer_that_is_not_a_size_is_an_error() {
        let answers = &[GREETING, r#"{"return": {}}"#, r#"{"return": "much"}"#];
        assert!(matches!(monitor(answers).unwrap().size(0), Err(Error::Refused { .. })));
    }
}
