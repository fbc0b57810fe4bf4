//! Checks that the header compiles without warnings as C and as C++, and that each size, offset and
//! constant in C equals that in Rust.

use hotmem_c::*;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

/// Compiles a text as C11 and as C++17. The text includes the header.
fn compile(text: &str) {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    for (compiler, language, standard) in [("cc", "c", "c11"), ("c++", "c++", "c++17")] {
        let mut command = Command::new(compiler);
        command.args(["-x", language, &format!("-std={standard}")]);
        command.args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        command.arg(&include).arg("-").stdin(Stdio::piped());
        let mut compiler = command.spawn().expect("the compiler is installed");
        let mut stdin = compiler.stdin.take().expect("stdin is a pipe");
        std::io::Write::write_all(&mut stdin, text.as_bytes())
            .expect("the compiler reads its input");
        drop(stdin);
        assert!(compiler.wait().expect("the compiler ends").success(), "as {standard}:\n{text}");
    }
}

/// Includes the header twice, as a source may do, and defines `CHECK`.
const BEGINNING: &str = r#"#include "hotmem.h"
#include "hotmem.h"
#ifdef __cplusplus
#define CHECK(condition) static_assert(condition, #condition)
#else
#define CHECK(condition) _Static_assert(condition, #condition)
#endif
"#;

/// Adds checks of the size, the alignment and the offsets of a struct to the text.
macro_rules! check_struct {
    ($text:ident, $name:ident { $($field:ident),* }) => {
        // If a field of the struct is not listed, this pattern does not compile.
        let _ = |value: $name| { let $name { $($field: _),* } = value; };
        let (name, size, align) =
            (stringify!($name), size_of::<$name>(), align_of::<$name>());
        writeln!($text, "CHECK(sizeof(struct {name}) == {size});").unwrap();
        let alignof = format!("offsetof(struct align_{name}, it)");
        writeln!($text, "struct align_{name} {{ char c; struct {name} it; }};").unwrap();
        writeln!($text, "CHECK({alignof} == {align});").unwrap();
        $(
            let (field, offset) = (stringify!($field), offset_of!($name, $field));
            writeln!($text, "CHECK(offsetof(struct {name}, {field}) == {offset});").unwrap();
        )*
    };
}

/// Adds checks of the size and the alignment of an opaque struct: the caller provides its memory,
/// and does not know its fields.
macro_rules! check_opaque {
    ($text:ident, $name:ident, $bytes:ident) => {
        let (name, size, align) = (stringify!($name), size_of::<$name>(), align_of::<$name>());
        writeln!(
            $text,
            "CHECK(sizeof(struct {name}) == {size} && {size} == {});",
            stringify!($bytes)
        )
        .unwrap();
        writeln!($text, "struct align_{name} {{ char c; struct {name} it; }};").unwrap();
        writeln!($text, "CHECK(offsetof(struct align_{name}, it) == {align});").unwrap();
    };
}

macro_rules! check_constants {
    ($text:ident, $($name:ident)*) => {
        $(writeln!($text, "CHECK({} == {});", stringify!($name), $name).unwrap();)*
    };
}

#[test]
fn sizes_offsets_and_constants_are_equal_in_c_and_rust() {
    let mut text = BEGINNING.to_owned();
    check_opaque!(text, hotmem, HOTMEM_SIZE);
    check_opaque!(text, hotmem_virtio_mem, HOTMEM_VIRTIO_MEM_SIZE);
    check_opaque!(text, hotmem_balloon, HOTMEM_BALLOON_SIZE);
    check_struct!(text, hotmem_config { hooks, mappable_end, low_end, cpus });
    check_struct!(text, hotmem_request { frames, align, min, max, at, flags, node });
    check_struct!(
        text,
        hotmem_counts { announced, present, online, movable, free, reported, isolated, used }
    );
    check_struct!(text, hotmem_removal { removed, paddr, len, why, reserved });
    check_struct!(
        text,
        hotmem_hooks {
            ctx,
            cpu,
            node,
            wake_reporter,
            tables_needed,
            map,
            unmap,
            remap_tables_needed,
            remap,
            release_tables,
            going_online,
            online_cancelled,
            onlined,
            going_offline,
            offline_cancelled,
            offlined,
            discard,
            migrate
        }
    );
    check_struct!(
        text,
        hotmem_virtio_mem_config {
            block_size,
            node_id,
            padding,
            addr,
            region_size,
            usable_region_size,
            plugged_size,
            requested_size
        }
    );
    check_struct!(text, hotmem_virtio_mem_request { until_ns, bytes });
    check_struct!(
        text,
        hotmem_virtio_mem_status { state, reserved, requested, plugged, requests, missing_frames }
    );
    check_struct!(text, hotmem_range { paddr, len });
    check_struct!(
        text,
        hotmem_balloon_options {
            min_free_frames,
            answer_timeout_ns,
            flags,
            poison,
            max_report_ranges,
            reserved
        }
    );
    check_struct!(text, hotmem_balloon_config { num_pages, free_page_hint_cmd_id, generation });
    check_struct!(
        text,
        hotmem_balloon_message {
            until_ns,
            queue,
            value,
            len,
            count,
            bitmap_len,
            reserved,
            bytes,
            ranges
        }
    );
    check_struct!(text, hotmem_balloon_answer { queue, written, bitmap });
    check_struct!(
        text,
        hotmem_balloon_status {
            state,
            reserved,
            inflated,
            target,
            reports,
            reported,
            initialised,
            invalid_answers
        }
    );
    check_constants!(text, HOTMEM_SIZE HOTMEM_ALIGN HOTMEM_ENOMEM HOTMEM_EALREADY
        HOTMEM_VIRTIO_MEM_FEATURES HOTMEM_BALLOON_FEATURES HOTMEM_TRUST_HOST HOTMEM_QUEUE_REPORTS);
    assert_eq!(HOTMEM_NONE, u64::MAX);
    text.push_str("CHECK(HOTMEM_NONE == UINT64_MAX);\n");
    compile(&text);
}

#[test]
fn a_failed_check_does_not_compile() {
    let text = format!("{BEGINNING}CHECK(sizeof(struct hotmem_request) != 0);\n");
    compile(&text);
    let failing = text.replace("!= 0", "== 0");
    assert!(std::panic::catch_unwind(|| compile(&failing)).is_err());
}

#[test]
fn c_and_cpp_can_call_all_functions() {
    compile(include_str!("header/calls.c"));
}

#[test]
fn inline_functions_check_the_pointer() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/header/inline.c");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    for level in ["-O2", "-Os"] {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("inline{level}"));
        let mut compiler = Command::new("cc");
        compiler.args([level, "-std=c11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(&include);
        compiler.arg(&source).arg("-o").arg(&program);
        assert!(compiler.status().expect("the compiler is installed").success(), "{level}");
        assert_eq!(Command::new(program).status().unwrap().code(), Some(0), "{level}");
    }
}
