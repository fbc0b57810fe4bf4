//! Reads what only trees of riscv64 have: the harts' interrupt controllers, the frequency of their timer,
//! and the platform-level interrupt controller (PLIC).

use super::error::TreeError;
use super::node::{CellReader, Node, Range};
use crate::fixed_list::FixedList;

/// The cause of an external interrupt in S-mode, by which a PLIC names the mode that it interrupts
/// (privileged specification, 12.1.8).
const SUPERVISOR_EXTERNAL: u64 = 9;
/// The cause that marks a context that interrupts nothing.
const NO_INTERRUPT: u64 = u32::MAX as u64;

/// The harts' interrupt controllers, their timer, and the PLIC.
#[derive(Clone, Debug)]
pub struct Riscv {
    /// The number of counts of the harts' timer in a second.
    pub timer_hz: Option<u64>,
    /// The PLIC.
    pub plic: Option<Plic>,
    /// The ID of each hart that can run the kernel, and the phandle of its interrupt controller.
    hart_controllers: FixedList<(u64, u32), MAX_HARTS>,
    /// The hart whose children are read now.
    hart: Option<u64>,
}

/// A PLIC.
#[derive(Clone, Copy, Debug)]
pub struct Plic {
    /// The registers.
    pub registers: Range,
    /// The number of interrupt sources, which are numbered from 1 on.
    pub sources: u32,
    /// The number of each context that interrupts a hart in S-mode, and the phandle of that hart's
    /// interrupt controller.
    contexts: FixedList<(u64, u32), MAX_CONTEXTS>,
}

/// The maximal number of harts and of contexts in S-mode that are known. Others are not used.
const MAX_HARTS: usize = 64;
const MAX_CONTEXTS: usize = 64;
// The limits of a PLIC (RISC-V Platform-Level Interrupt Controller Specification 1.0.0, chapter 3). Registers
// of other kinds follow those of the last source and of the last context.
const MAX_SOURCE: u32 = 1023;
const CONTEXT_COUNT: u64 = 15872;

impl Riscv {
    pub(super) const NONE: Self = Riscv {
        timer_hz: None,
        plic: None,
        hart_controllers: FixedList::empty((0, 0)),
        hart: None,
    };

    /// Returns the PLIC's context that interrupts this hart in S-mode.
    #[must_use]
    pub fn context_of(&self, hart: u64) -> Option<u64> {
        let &(_, controller) = self.hart_controllers.iter().find(|&&(id, _)| id == hart)?;
        let mut contexts = self.plic.as_ref()?.contexts.iter();
        contexts.find(|&&(_, of)| of == controller).map(|&(context, _)| context)
    }

    pub(super) fn read_cpus<'t>(&mut self, node: &Node<'t>) -> Result<(), TreeError<'t>> {
        const FREQUENCY: &str = "timebase-frequency";
        let Some(value) = node.property(FREQUENCY)? else { return Ok(()) };
        let cells = u32::try_from(value.len() / 4).unwrap_or(0);
        let hz = CellReader::new(value).number(cells).filter(|&hz| hz > 0);
        self.timer_hz = Some(hz.ok_or(node.malformed(FREQUENCY))?);
        Ok(())
    }

    /// Begins a hart, whose ID is `None` if it cannot run the kernel. The nodes that follow are its
    /// children, up to the next hart.
    pub(super) fn begin_hart(&mut self, id: Option<u64>) {
        self.hart = id;
    }

    pub(super) fn is_wanted<'t>(node: &Node<'t>) -> Result<bool, TreeError<'t>> {
        Ok(node.has_string("compatible", "riscv,cpu-intc")? || Plic::is_at(node)?)
    }

    pub(super) fn read_node<'t>(&mut self, node: &Node<'t>) -> Result<(), TreeError<'t>> {
        if !Plic::is_at(node)? {
            if let (Some(hart), Some(phandle)) = (self.hart.take(), node.number("phandle")?) {
                // A hart without room in the list gets no external interrupts.
                let _ = self.hart_controllers.push((hart, phandle));
            }
        } else if self.plic.is_none() {
            self.plic = Some(Plic::read(node)?);
        }
        Ok(())
    }
}

impl Plic {
    /// Returns the address of the priority of a source.
    #[must_use]
    pub fn priority(&self, source: u32) -> Option<u64> {
        self.register((1..=self.sources).contains(&source).then_some(4 * u64::from(source))?)
    }

    /// Returns the address of the word that enables a source in a context. The source is bit `source % 32`.
    #[must_use]
    pub fn enables(&self, context: u64, source: u32) -> Option<u64> {
        let base = 0x2000 + u64::from(source / 32) * 4;
        self.register(context.checked_mul(0x80)?.checked_add(base)?)
    }

    /// Returns the address of the priority up to which sources do not interrupt a context.
    #[must_use]
    pub fn threshold(&self, context: u64) -> Option<u64> {
        self.register(context.checked_mul(0x1000)?.checked_add(0x20_0000)?)
    }

    /// Returns the address of the register that names the source that has interrupted a context, and that
    /// ends its interrupt.
    #[must_use]
    pub fn claim(&self, context: u64) -> Option<u64> {
        self.register(context.checked_mul(0x1000)?.checked_add(0x20_0004)?)
    }

    /// Returns the address of the register at an offset. (RISC-V Platform-Level Interrupt Controller
    /// Specification 1.0.0, chapter 3)
    fn register(&self, offset: u64) -> Option<u64> {
        (self.registers.len >= offset.checked_add(4)?).then(|| self.registers.start + offset)
    }

    pub(super) fn is_at<'t>(node: &Node<'t>) -> Result<bool, TreeError<'t>> {
        Ok(node.is_device("sifive,plic-1.0.0")? || node.is_device("riscv,plic0")?)
    }

    fn read<'t>(node: &Node<'t>) -> Result<Self, TreeError<'t>> {
        const CONTEXTS: &str = "interrupts-extended";
        let sources = node.number("riscv,ndev")?.filter(|&sources| sources <= MAX_SOURCE);
        let sources = sources.ok_or(node.malformed("riscv,ndev"))?;
        let mut contexts = FixedList::empty((0, 0));
        let mut cells = CellReader::new(node.property(CONTEXTS)?.unwrap_or_default());
        let mut number = 0u64;
        while !cells.is_empty() {
            // A hart's interrupt controller has one cell for each interrupt.
            let pair = cells.number(1).zip(cells.number(1)).ok_or(node.malformed(CONTEXTS))?;
            let (Ok(controller), cause) = (u32::try_from(pair.0), pair.1) else {
                return Err(node.malformed(CONTEXTS));
            };
            if cause == SUPERVISOR_EXTERNAL && number < CONTEXT_COUNT {
                // A context without room in the list is not used.
                let _ = contexts.push((number, controller));
            } else if cause > SUPERVISOR_EXTERNAL + 2 && cause != NO_INTERRUPT {
                return Err(node.malformed(CONTEXTS));
            }
            number += 1;
        }
        Ok(Plic { registers: node.first_range()?, sources, contexts })
    }
}

/// Returns whether a CPU can run the kernel: of riscv64's harts, only those with an MMU can. A hart that
/// only monitors the others has none.
pub(super) fn can_run_kernel<'t>(node: &Node<'t>) -> Result<bool, TreeError<'t>> {
    let is_hart = node.has_string("compatible", "riscv")?;
    let has_mmu =
        node.property("mmu-type")?.is_some() && !node.has_string("mmu-type", "riscv,none")?;
    Ok(!is_hart || has_mmu)
}
