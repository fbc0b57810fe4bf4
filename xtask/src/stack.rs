//! Checks how much stack each function takes, by reading the machine code of images for x86-64.
//!
//! Kernels have stacks of 16 KiB, or little more. A function takes what its prologue subtracts from
//! `rsp`. The saved registers, at most 56 bytes, are not counted.

use crate::{step::root, steps::Steps};
use object::{
    Object, ObjectSection, ObjectSymbol, SymbolKind,
    read::archive::{ArchiveFile, ArchiveMember},
};
use std::{collections::BTreeMap, fs, io, process::ExitCode};

/// A file of machine code, and the maximal number of bytes of stack that a function may take.
struct Image {
    path: &'static str,
    limit: u64,
}

const RELEASE_LIMIT: u64 = 4 << 10;
const DEBUG_LIMIT: u64 = 8 << 10;

const IMAGES: [Image; 5] = [
    Image { path: "target/x86_64-unknown-none/debug/hotmem-guest", limit: DEBUG_LIMIT },
    Image { path: "target/x86_64-unknown-none/debug/libhotmem_c.rlib", limit: DEBUG_LIMIT },
    Image { path: "target/x86_64-unknown-none/release/hotmem-guest", limit: RELEASE_LIMIT },
    Image {
        path: "target/x86_64-unknown-none/release/examples/step_5_virtio_mem",
        limit: RELEASE_LIMIT,
    },
    Image { path: "target/c/x86_64-unknown-none/release/libhotmem.a", limit: RELEASE_LIMIT },
];

/// Builds the images and checks their functions.
pub(crate) fn run() -> ExitCode {
    let mut steps = Steps::default();
    check(&mut steps);
    steps.conclude()
}

/// Builds the images and checks their functions.
pub(crate) fn check(steps: &mut Steps) {
    steps.run_group("stack");
    if !steps.needs("target") {
        return;
    }
    for image in &IMAGES {
        match too_large(image) {
            Ok(functions) => functions.into_iter().for_each(|function| steps.fail(function)),
            Err(error) => steps.fail(format!("{}: {error}", image.path)),
        }
    }
}

/// Returns a message for each function that takes too much stack.
fn too_large(image: &Image) -> io::Result<Vec<String>> {
    let mut functions =
        stack_bytes(&fs::read(root().join(image.path))?).map_err(io::Error::other)?;
    functions.retain(|name, _| name.contains("hotmem"));
    // An image without functions would pass.
    if functions.len() < 100 {
        return Err(io::Error::other(format!("only {} functions were found", functions.len())));
    }
    if let Some((name, bytes)) = functions.iter().max_by_key(|(_, bytes)| **bytes) {
        println!("-- {}: at most {bytes} bytes of stack ({name})", image.path);
    }
    let too_large = functions.iter().filter(|(_, bytes)| **bytes > image.limit);
    Ok(too_large
        .map(|(name, bytes)| {
            format!(
                "{}: {name} takes {bytes} bytes of stack, more than {}",
                image.path, image.limit
            )
        })
        .collect())
}

/// Returns the number of bytes of stack that each function of an object file, an image or a library
/// takes.
fn stack_bytes(file: &[u8]) -> object::Result<BTreeMap<String, u64>> {
    let mut functions = BTreeMap::new();
    if let Ok(library) = ArchiveFile::parse(file) {
        for member in library.members() {
            let member: ArchiveMember<'_> = member?;
            // A library also contains metadata, which is no object file.
            if let Ok(object) = object::File::parse(member.data(file)?) {
                add_functions(&object, &mut functions)?;
            }
        }
    } else {
        add_functions(&object::File::parse(file)?, &mut functions)?;
    }
    Ok(functions)
}

fn add_functions(
    object: &object::File<'_>,
    functions: &mut BTreeMap<String, u64>,
) -> object::Result<()> {
    for symbol in object.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let Some(section) = symbol.section_index() else { continue };
        let section = object.section_by_index(section)?;
        if let Some(code) = section.data_range(symbol.address(), symbol.size())? {
            let name = format!("{:#}", rustc_demangle::demangle(symbol.name()?));
            let bytes = functions.entry(name).or_default();
            *bytes = (*bytes).max(frame_bytes(code));
        }
    }
    Ok(())
}

/// A page of stack. A function that takes more touches each page, so that it cannot skip the guard
/// page below the stack.
const PAGE: u64 = 4096;

/// Returns the number of bytes that a function's code subtracts from the stack pointer: by one
/// instruction, by one for each page and one for the rest, or, if the function takes many pages, by a
/// loop over the pages, whose end `r11` holds, and one for the rest.
fn frame_bytes(code: &[u8]) -> u64 {
    let (mut pages, mut rest, mut loop_bytes) = (0, 0, 0);
    for bytes in code.windows(7) {
        let &[a, b, c, d, e, f, g] = bytes else { continue };
        let immediate = u64::from(u32::from_le_bytes([d, e, f, g]));
        // At its end, a function adds, or subtracts a negative number.
        match [a, b, c] {
            [0x48, 0x83, 0xec] if d < 0x80 => rest = u64::from(d).max(rest),
            _ if immediate > u64::from(i32::MAX.cast_unsigned()) => {}
            [0x48, 0x81, 0xec] if immediate == PAGE => pages += PAGE,
            [0x48, 0x81, 0xec] => rest = immediate.max(rest),
            [0x49, 0x81, 0xeb] => loop_bytes = immediate.max(loop_bytes),
            _ => {}
        }
    }
    // A loop subtracts each page by the same instruction.
    rest + if loop_bytes > 0 { loop_bytes } else { pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sub rsp, bytes`
    fn sub_rsp(bytes: u32) -> Vec<u8> {
        [&[0x48, 0x81, 0xec][..], &bytes.to_le_bytes()].concat()
    }

    #[test]
    fn the_bytes_of_every_form_of_prologue_are_counted() {
        let (push_rbx, ret) = (vec![0x53], vec![0xc3; 8]);
        let touch = vec![0x48, 0xc7, 0x04, 0x24, 0, 0, 0, 0];
        let short = vec![0x48, 0x83, 0xec, 0x28];
        let cases = [
            (vec![push_rbx.clone(), ret.clone()], 0),
            (vec![push_rbx.clone(), short.clone(), ret.clone()], 0x28),
            (vec![push_rbx.clone(), sub_rsp(0x408), ret.clone()], 0x408),
            (
                vec![
                    sub_rsp(4096),
                    touch.clone(),
                    sub_rsp(4096),
                    touch.clone(),
                    short,
                    ret.clone(),
                ],
                8232,
            ),
            // mov r11, rsp; sub r11, 0xe000; a loop; and the rest
            (
                vec![
                    vec![0x49, 0x89, 0xe3, 0x49, 0x81, 0xeb, 0, 0xe0, 0, 0],
                    sub_rsp(4096),
                    touch,
                    vec![0x4c, 0x39, 0xdc, 0x75, 0xec],
                    sub_rsp(0x178),
                    ret,
                ],
                0xe178,
            ),
        ];
        for (code, bytes) in cases {
            assert_eq!(frame_bytes(&code.concat()), bytes, "{code:x?}");
        }
    }

    #[test]
    fn files_without_machine_code_are_refused() {
        assert!(stack_bytes(b"no image").is_err());
        let path = "Cargo.toml";
        assert!(too_large(&Image { path, limit: 0 }).is_err());
    }

    /// If prologues were not recognised, every function would pass.
    #[test]
    fn functions_of_this_program_take_stack() {
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let functions = stack_bytes(&program).unwrap();
        let (_, bytes) =
            functions.iter().find(|(name, _)| name.contains("takes_eight_kib")).unwrap();
        assert!((8192..20_000).contains(bytes), "{bytes}");
        assert_eq!(takes_eight_kib(1), 8192);
    }

    #[inline(never)]
    fn takes_eight_kib(byte: u8) -> usize {
        std::hint::black_box([std::hint::black_box(byte); 8192]).len()
    }
}
