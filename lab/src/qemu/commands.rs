//! The connection by which the guest takes commands: its second serial port.

use super::Error;
use std::{
    io::{self, Write},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixStream},
    },
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// The name of a socket of QEMU that is connected with the port. It is no file, so nothing is left of it
/// when QEMU ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandSocket(String);

impl CommandSocket {
    /// Returns a name that no other machine has.
    #[must_use]
    pub fn unique() -> CommandSocket {
        // Relaxed: only the number must be unique.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        CommandSocket(format!("hotmem-commands-{}-{number}", std::process::id()))
    }

    /// Returns the description of QEMU's end.
    pub(super) fn chardev(&self) -> String {
        format!("socket,id=commands,path={},abstract=on,server=on,wait=off", self.0)
    }

    fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(&self.0)?)
    }
}

/// The end of the connection in this process. It is made with the first command, when QEMU's end exists.
pub(super) struct Commands {
    socket: CommandSocket,
    /// Whether the guest has said that it takes commands.
    pub(super) is_ready: bool,
    stream: Option<UnixStream>,
}

impl Commands {
    pub(super) fn new(socket: CommandSocket) -> Commands {
        Commands { socket, is_ready: false, stream: None }
    }

    /// Sends a line.
    pub(super) fn send(&mut self, line: &str) -> Result<(), Error> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => self.stream.insert(self.socket.connect().map_err(Error::Commands)?),
        };
        stream.write_all(format!("{line}\n").as_bytes()).map_err(Error::Commands)
    }
}
