//! Reads device trees of QEMU's pseries machine.
//!
//! The machine starts with a device tree without the property that describes the LMBs. QEMU adds
//! the property when the client negotiates its support (`ibm,client-architecture-support`, PAPR
//! B.6.2.3). The client of these tests is a firmware of nine instructions. It negotiates by the
//! hypercall that QEMU's own firmware makes. The test then reads the hypercall's answer from the
//! machine's memory by QEMU's monitor.

use hotmem_dlpar::Version;
use hotmem_lab::{
    patience,
    qemu::{Launch, Vm},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

const QEMU: &str = "qemu-system-ppc64";

/// The address of the first instruction.
const ENTRY_ADDRESS: usize = 0x100;
/// The address of the client's support vectors.
const SUPPORT_ADDRESS: usize = 0x400;
/// The address to which the firmware writes the hypercall's return value.
const RETURN_VALUE_ADDRESS: usize = 0x800;
/// The bytes at this address before the hypercall has returned.
const NOT_RETURNED: [u8; 8] = [0xaa; 8];
/// The address of the buffer for the hypercall's answer, which is a word of version and the tree.
const ANSWER_ADDRESS: u64 = 0x100_0000;
/// The size of this buffer.
const ANSWER_SIZE: usize = 0x20_0000;

/// The firmware's instructions.
const CODE: [u32; 9] = [
    0x3c60_0000, // lis  r3, 0
    0x6063_f002, // ori  r3, r3, 0xf002    KVMPPC_H_CAS
    0x3880_0400, // li   r4, SUPPORT
    0x3ca0_0100, // lis  r5, ANSWER >> 16
    0x3cc0_0020, // lis  r6, ANSWER_SIZE >> 16
    0x4400_0022, // sc   1
    0x38e0_0800, // li   r7, RETURN_VALUE
    0xf867_0000, // std  r3, 0(r7)
    0x4800_0000, // b    .
];

/// Returns the device tree of a machine with the arguments `args`, for a client that supports
/// `version` of the property.
pub(crate) fn device_tree(version: Version, args: &[&str]) -> Vec<u8> {
    let dir = Directory::new();
    let firmware = dir.0.join("firmware");
    fs::write(&firmware, image(version)).unwrap();
    let mut qemu = start(&firmware, args);
    let start = Instant::now();
    loop {
        let file = dir.0.join("returned");
        let returned =
            read_memory(&mut qemu, RETURN_VALUE_ADDRESS as u64, NOT_RETURNED.len(), &file);
        if returned != NOT_RETURNED {
            assert_eq!(returned, [0; 8], "the hypercall failed");
            break;
        }
        assert!(start.elapsed() < patience(), "the firmware hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    let answer = read_memory(&mut qemu, ANSWER_ADDRESS, ANSWER_SIZE, &dir.0.join("answer"));
    let tree = &answer[4..];
    let len = u32::from_be_bytes(tree[4..8].try_into().unwrap());
    tree[..usize::try_from(len).unwrap()].to_vec()
}

/// Returns the firmware's image, with the support vectors of the client.
fn image(version: Version) -> Vec<u8> {
    let mut image = vec![0; RETURN_VALUE_ADDRESS];
    let code: Vec<u8> = CODE.into_iter().flat_map(u32::to_be_bytes).collect();
    image[ENTRY_ADDRESS..ENTRY_ADDRESS + code.len()].copy_from_slice(&code);
    let support = support_vectors(version);
    image[SUPPORT_ADDRESS..SUPPORT_ADDRESS + support.len()].copy_from_slice(&support);
    image.extend(NOT_RETURNED);
    image
}

/// Returns the client's support vectors: a list of processors, which its first entry ends, and six
/// option vectors. A byte with the vector's length minus 1 precedes each vector.
fn support_vectors(version: Version) -> Vec<u8> {
    // PAPR counts the bytes of a vector from 1.
    let mut vector_5 = [0_u8; 24];
    vector_5[2 - 1] |= 0x20; // ibm,dynamic-reconfiguration-memory
    vector_5[5 - 1] |= 0x80; // associativity of form 1
    if version == Version::V2 {
        vector_5[22 - 1] |= 0x80; // version 2 of the property
    }
    let vectors: [&[u8]; 6] = [&[0, 0x80], &[0; 4], &[0; 4], &[0; 2], &vector_5, &[0; 4]];
    let minus_one = |len: usize| u8::try_from(len - 1).unwrap();
    let mut support = [0, 0, 0, u32::MAX].map(u32::to_be_bytes).concat();
    support.push(minus_one(vectors.len()));
    for vector in vectors {
        support.push(minus_one(vector.len()));
        support.extend(vector);
    }
    support
}

fn start(firmware: &Path, args: &[&str]) -> Vm {
    let mut command = Command::new(QEMU);
    command.args(["-nodefaults", "-display", "none", "-accel", "tcg"]);
    command.args(["-chardev", "socket,id=monitor,fd=0", "-mon", "chardev=monitor,mode=control"]);
    command.args(["-M", "pseries,cap-ccf-assist=off", "-bios"]).arg(firmware).args(args);
    let started = Vm::launch(Launch::new(command, patience()));
    started.unwrap_or_else(|error| panic!("{QEMU} {}: {error}", args.join(" ")))
}

/// Returns the machine's memory at `address`, which QEMU writes to `file`.
fn read_memory(qemu: &mut Vm, address: u64, len: usize, file: &Path) -> Vec<u8> {
    qemu.monitor_line(&format!("pmemsave {address:#x} {len} \"{}\"", file.display())).unwrap();
    fs::read(file).unwrap()
}

/// A new temporary directory. Dropping this value removes it.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NTH: AtomicU32 = AtomicU32::new(0);
        // Relaxed, because the number orders no other memory accesses.
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let dir = format!("pseries-{}-{nth}", process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(dir);
        fs::create_dir_all(&dir).unwrap();
        Directory(dir)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
