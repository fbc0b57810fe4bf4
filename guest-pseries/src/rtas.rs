//! Makes RTAS calls, by the tokens that the device tree gives.

use crate::work_area::WorkArea;
use core::fmt;
use deforest::{
    BlobError, Error as ReadError,
    blob::{Devicetree, Node},
    fallible_iterator::FallibleIterator,
};
use hotmem_dlpar::{Call, DrcIndex};

/// The numbers of a connector's indicators and of its sensor.
const ISOLATION: u32 = 9001;
const ALLOCATION: u32 = 9003;
const ENTITY_SENSE: u32 = 9003;

/// The vector argument of `check-exception` that stands for PAPR's event interrupt.
const EVENT_VECTOR: u32 = 0x500;
/// The classes of events to poll for: hotplug events, and environment and power events.
const HOTPLUG_EVENTS: u32 = 0x1000_0000;
const POWER_EVENTS: u32 = 0x4000_0000;

/// Access to the firmware.
pub trait Firmware {
    /// Makes an RTAS call. All words are in the processor's byte order. If the call has more arguments
    /// and results than the firmware's interface has room for, all results are -1, a hardware error.
    fn call(&mut self, token: u32, args: &[u32], results: &mut [u32]);

    /// Calls `ibm,configure-connector` with this work area. Returns the status.
    fn configure_connector(&mut self, token: u32, area: &mut WorkArea) -> i32;

    /// Calls `check-exception` with `args`, followed by the buffer `log`. Returns the status.
    fn check_exception(&mut self, token: u32, args: [u32; 4], log: &mut [u8]) -> i32;
}

/// Tokens of the calls that dynamic memory needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tokens {
    /// `set-indicator`.
    pub set_indicator: u32,
    /// `get-sensor-state`.
    pub get_sensor_state: u32,
    /// `ibm,configure-connector`.
    pub configure_connector: u32,
    /// `check-exception`.
    pub check_exception: u32,
    /// `power-off`.
    pub power_off: u32,
}

/// The reason why tokens cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenError {
    /// The bytes are not a flattened device tree.
    Fdt(ReadError),
    /// The device tree has no node `/rtas`.
    NoRtas,
    /// `/rtas` has no call with this name, or the call's token is not a single cell.
    Missing(&'static str),
}

/// The RTAS of a machine.
#[derive(Debug)]
pub struct Rtas<F> {
    /// The access to the firmware.
    pub firmware: F,
    tokens: Tokens,
}

impl Tokens {
    /// Reads the tokens from a flattened device tree.
    ///
    /// # Errors
    /// [`TokenError`] if a token is missing, or if `blob` is not a device tree.
    pub fn of(blob: &[u64]) -> Result<Tokens, TokenError> {
        let root = Devicetree::from_slice(blob)?.root_node()?;
        let rtas = child(&root, "rtas")?.ok_or(TokenError::NoRtas)?;
        let token = |name| token_of(&rtas, name);
        Ok(Tokens {
            set_indicator: token("set-indicator")?,
            get_sensor_state: token("get-sensor-state")?,
            configure_connector: token("ibm,configure-connector")?,
            check_exception: token("check-exception")?,
            power_off: token("power-off")?,
        })
    }

    /// Interprets an RTAS call as a call for a connector. Returns `None` if it is another call.
    #[must_use]
    pub fn call_for_connector(&self, token: u32, args: &[u32]) -> Option<Call> {
        match *args {
            [ENTITY_SENSE, _] if token == self.get_sensor_state => Some(Call::Sense),
            [ALLOCATION, _, 0] if token == self.set_indicator => Some(Call::SetUnusable),
            [ALLOCATION, _, 1] if token == self.set_indicator => Some(Call::SetUsable),
            [ISOLATION, _, 0] if token == self.set_indicator => Some(Call::Isolate),
            [ISOLATION, _, 1] if token == self.set_indicator => Some(Call::Unisolate),
            _ => None,
        }
    }
}

/// Returns the command line in the node `/chosen`, or an empty line if the node has none.
///
/// # Errors
/// [`TokenError::Fdt`] if `blob` is not a device tree.
pub fn bootargs<'a>(blob: &'a [u64]) -> Result<&'a [u8], TokenError> {
    let root = Devicetree::from_slice(blob)?.root_node()?;
    let Some(chosen) = child(&root, "chosen")? else { return Ok(&[]) };
    let args: Option<&'a [u8]> = chosen.get_property("bootargs")?.map(|property| property.value());
    let args = args.unwrap_or(&[]);
    Ok(args.strip_suffix(&[0]).unwrap_or(args))
}

/// Returns the token of a call.
pub(crate) fn token_of(rtas: &Node<'_>, name: &'static str) -> Result<u32, TokenError> {
    let cell = rtas.get_property(name)?.and_then(|property| {
        let value: &[u8] = property.value();
        value.try_into().ok()
    });
    cell.map(u32::from_be_bytes).ok_or(TokenError::Missing(name))
}

/// Returns the child node with this name.
pub(crate) fn child<'a>(node: &Node<'a>, name: &str) -> Result<Option<Node<'a>>, ReadError> {
    let mut children = node.children();
    while let Some(child) = children.next()? {
        if child.name()? == name {
            return Ok(Some(child));
        }
    }
    Ok(None)
}

impl<F: Firmware> Rtas<F> {
    /// Returns the RTAS of a machine with these tokens.
    pub fn new(firmware: F, tokens: Tokens) -> Rtas<F> {
        Rtas { firmware, tokens }
    }

    /// Calls `get-sensor-state` for dr-entity-sense. Returns the status and the state.
    pub fn entity_sense(&mut self, connector: DrcIndex) -> (i32, i32) {
        let mut results = [0; 2];
        let args = [ENTITY_SENSE, connector.0];
        self.firmware.call(self.tokens.get_sensor_state, &args, &mut results);
        (results[0].cast_signed(), results[1].cast_signed())
    }

    /// Calls `set-indicator` for the allocation state.
    pub fn set_allocation(&mut self, connector: DrcIndex, usable: bool) -> i32 {
        self.set_indicator(ALLOCATION, connector, u32::from(usable))
    }

    /// Calls `set-indicator` for the isolation state, where 0 means isolated.
    pub fn set_isolation(&mut self, connector: DrcIndex, isolated: bool) -> i32 {
        self.set_indicator(ISOLATION, connector, u32::from(!isolated))
    }

    /// Calls `ibm,configure-connector` once.
    pub fn configure_connector(&mut self, area: &mut WorkArea) -> i32 {
        self.firmware.configure_connector(self.tokens.configure_connector, area)
    }

    /// Polls for an event. Returns whether there was one. If there was, `log` holds it.
    ///
    /// # Errors
    /// The status, if it is neither 0 (an event) nor 1 (no event).
    pub fn check_exception(&mut self, log: &mut [u8]) -> Result<bool, i32> {
        let args = [EVENT_VECTOR, 0, HOTPLUG_EVENTS | POWER_EVENTS, 0];
        match self.firmware.check_exception(self.tokens.check_exception, args, log) {
            0 => Ok(true),
            1 => Ok(false),
            status => Err(status),
        }
    }

    fn set_indicator(&mut self, indicator: u32, connector: DrcIndex, value: u32) -> i32 {
        let mut results = [0];
        let args = [indicator, connector.0, value];
        self.firmware.call(self.tokens.set_indicator, &args, &mut results);
        results[0].cast_signed()
    }
}

impl From<BlobError> for TokenError {
    fn from(error: BlobError) -> TokenError {
        TokenError::Fdt(ReadError::Blob(error))
    }
}

impl From<ReadError> for TokenError {
    fn from(error: ReadError) -> TokenError {
        TokenError::Fdt(error)
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenError::Fdt(error) => write!(f, "not a device tree: {error}"),
            TokenError::NoRtas => f.write_str("the device tree has no /rtas"),
            TokenError::Missing(name) => write!(f, "/rtas has no token for {name}"),
        }
    }
}

impl core::error::Error for TokenError {}
