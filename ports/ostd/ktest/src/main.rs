//! Runs OSTD's own tests of memory management in a kernel whose frame allocator is Hotmem. Prints a
//! line of TAP for each test.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use alloc::string::ToString;
use core::alloc::Layout;
use core::any::Any;
use core::panic::PanicInfo;
use hotmem_ostd_allocator::FrameAllocator;
use osdk_heap_allocator::{HeapAllocator, type_from_layout};
use ostd::boot::EarlyCmdline;
use ostd::ktest::{KtestError, KtestItem, KtestIter, PanicInfo as Panicked};
use ostd::mm::heap::SlotInfo;
use ostd::panic::{begin_panic, catch_unwind};
use ostd::power::{ExitCode, poweroff};
use ostd::prelude::println;
use ostd::task::TaskOptions;

/// The module whose tests are run.
const MODULE: &str = "ostd::mm";

#[ostd::global_frame_allocator]
static FRAME_ALLOCATOR: FrameAllocator = FrameAllocator;

#[ostd::global_heap_allocator]
static HEAP_ALLOCATOR: HeapAllocator = HeapAllocator;

#[ostd::global_heap_allocator_slot_map]
const fn slot_type_from_layout(layout: Layout) -> Option<SlotInfo> {
    type_from_layout(layout)
}

#[ostd::early_cmdline_parser]
const fn early_cmdline(_: &str) -> EarlyCmdline {
    EarlyCmdline { log_level: ostd::log::LevelFilter::Warning, has_early_console: true }
}

#[ostd::ktest::main]
fn main() {
    TaskOptions::new(run).spawn().expect("there is memory for a task");
}

fn run() {
    println!();
    let (mut number, mut failed) = (0, 0);
    for test in KtestIter::new().filter(is_in_module) {
        number += 1;
        let name = test.info().fn_name;
        let module = test.info().module_path;
        match test.run(&(run_caught as fn(_) -> _)) {
            Ok(()) => println!("ok {} - {}::{}", number, module, name),
            Err(error) => {
                failed += 1;
                println!("not ok {} - {}::{}: {}", number, module, name, failure_text(error));
            }
        }
    }
    println!("1..{}", number);
    let passed = number > 0 && failed == 0;
    println!("hotmem: {}", if passed { "PASS" } else { "FAIL" });
    poweroff(if passed { ExitCode::Success } else { ExitCode::Failure });
}

fn is_in_module(test: &KtestItem) -> bool {
    test.info().module_path.starts_with(MODULE)
}

fn run_caught(test: fn()) -> Result<(), Box<dyn Any + Send>> {
    catch_unwind(test)
}

fn failure_text(error: KtestError) -> alloc::string::String {
    match error {
        KtestError::Panic(panicked) => panicked.to_string().replace('\n', " "),
        KtestError::ShouldPanicButNoPanic => "the test did not panic".to_string(),
        KtestError::ExpectedPanicNotMatch(expected, panicked) => {
            alloc::format!("the panic is not `{expected}`: {}", panicked.message)
        }
        KtestError::Unknown => "an unknown panic".to_string(),
    }
}

/// Ends the test that panicked: unwinds to `run_caught`.
#[ostd::ktest::panic_handler]
fn end_test(info: &PanicInfo) -> ! {
    let location = info.location().expect("every panic has a location");
    let panicked = Panicked {
        message: info.message().to_string(),
        file: location.file().to_string(),
        line: location.line() as usize,
        col: location.column() as usize,
    };
    begin_panic(Box::new(panicked.clone()));
    println!("Bail out! no test catches the panic: {}", panicked);
    poweroff(ExitCode::Failure);
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    end_test(info)
}
