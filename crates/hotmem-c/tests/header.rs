//! Checks that the header compiles without warnings as C and as C++, and that each size, offset and
//! constant equals that of the Rust side.

use hotmem_c::*;
use std::fmt::Write;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

/// Compiles a text that includes the header, as C11 and as C++17.
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

const BEGINNING: &str = r#"#include "hotmem.h"
#include "hotmem.h"
#ifdef __cplusplus
#define CHECK(what) static_assert(what, #what)
#else
#define CHECK(what) _Static_assert(what, #what)
#endif
"#;

/// Adds checks of the size, the alignment and the offsets of a struct to the text.
macro_rules! layout {
    ($text:ident, $name:ident { $($field:ident),* }) => {
        // If a field of the struct is not listed, this pattern does not compile.
        let _ = |whole: $name| { let $name { $($field: _),* } = whole; };
        let (name, size, align) =
            (stringify!($name), size_of::<$name>(), align_of::<$name>());
        writeln!($text, "CHECK(sizeof(struct {name}) == {size});").unwrap();
        let alignof = format!("offsetof(struct align_{name}, it)");
        writeln!($text, "struct align_{name} {{ char c; struct {name} it; }};").unwrap();
        writeln!($text, "CHECK({alignof} == {align});").unwrap();
        $(
            let (field, at) = (stringify!($field), offset_of!($name, $field));
            writeln!($text, "CHECK(offsetof(struct {name}, {field}) == {at});").unwrap();
        )*
    };
}

/// Adds checks of the size and the alignment of an object in the caller's memory to the text.
macro_rules! object {
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

macro_rules! constants {
    ($text:ident, $($name:ident)*) => {
        $(writeln!($text, "CHECK({} == {});", stringify!($name), $name).unwrap();)*
    };
}

#[test]
fn sizes_and_offsets_are_the_same_on_both_sides() {
    let mut text = BEGINNING.to_owned();
    object!(text, hotmem, HOTMEM_SIZE);
    object!(text, hotmem_vmem, HOTMEM_VMEM_SIZE);
    object!(text, hotmem_balloon, HOTMEM_BALLOON_SIZE);
    layout!(text, hotmem_config { hooks, reach, low_end, cpus });
    layout!(text, hotmem_request { frames, align, min, max, at, flags, node });
    layout!(
        text,
        hotmem_counts { announced, present, online, movable, free, reported, isolated, used }
    );
    layout!(text, hotmem_removal { removed, paddr, len, why, reserved });
    layout!(
        text,
        hotmem_hooks {
            ctx,
            cpu,
            node,
            wake_reporter,
            tables_needed,
            map,
            unmap,
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
    layout!(
        text,
        hotmem_vmem_config {
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
    layout!(text, hotmem_vmem_request { until_ns, bytes });
    layout!(text, hotmem_vmem_status { state, reserved, requested, plugged, requests });
    layout!(text, hotmem_range { paddr, len });
    layout!(
        text,
        hotmem_balloon_options { floor, patience_ns, flags, poison, report_ranges, reserved }
    );
    layout!(text, hotmem_balloon_config { num_pages, free_page_hint_cmd_id, generation });
    layout!(text, hotmem_balloon_message { until_ns, queue, value, len, count, bytes, ranges });
    layout!(text, hotmem_balloon_status { state, reserved, held, target, reports, reported });
    constants!(text, HOTMEM_SIZE HOTMEM_ALIGN HOTMEM_ENOMEM HOTMEM_EALREADY
        HOTMEM_VMEM_FEATURES HOTMEM_BALLOON_FEATURES HOTMEM_QUEUE_NONE HOTMEM_QUEUE_REPORTS);
    assert_eq!(HOTMEM_NONE, u64::MAX);
    text.push_str("CHECK(HOTMEM_NONE == UINT64_MAX);\n");
    compile(&text);
}

#[test]
fn a_wrong_offset_does_not_compile() {
    let text = format!("{BEGINNING}CHECK(sizeof(struct hotmem_request) != 0);\n");
    compile(&text);
    let wrong = text.replace("!= 0", "== 0");
    assert!(std::panic::catch_unwind(|| compile(&wrong)).is_err());
}

#[test]
fn a_kernel_in_c_or_cpp_can_call_everything() {
    compile(include_str!("header/calls.c"));
}
