//! Tests of valid and of invalid command lines.

use super::*;

fn parse(text: &str) -> Result<Options, CmdlineError<'_>> {
    Options::parse(text.as_bytes())
}

#[test]
fn an_empty_line_and_foreign_words_leave_the_defaults() {
    assert_eq!(parse(""), Ok(Options::default()));
    assert_eq!(parse(" console=ttyS0 quiet  hotmemory.x=1 root=hotmem.y "), parse(""));
}

#[test]
fn words_after_two_dashes_are_for_the_next_kernel() {
    assert_eq!(split(b"a --b c"), (&b"a --b c"[..], None));
    assert_eq!(split(b"a -- b -- c"), (&b"a "[..], Some(&b" b -- c"[..])));
    assert_eq!(split(b"--"), (&b""[..], Some(&b""[..])));
    assert_eq!(split(b""), (&b""[..], None));
}

#[test]
fn every_key_is_read() {
    let options = parse(
        "hotmem.touch=1G hotmem.work=2G hotmem.work_at=inflated hotmem.hold=off \
         hotmem.reports=off hotmem.report_rate=64M hotmem.online=online_kernel \
         hotmem.leftover=unplug hotmem.vetoes=3 hotmem.refused=4 \
         hotmem.descriptors=64 hotmem.check=balloon \
         hotmem.check_known=balloon/actual-readback hotmem.check_host=off hotmem.exit=resizes:3 hotmem.seed=42 hotmem.release=off \
         hotmem.poison=7 hotmem.zero=device hotmem.late=2G hotmem.churn=on hotmem.nmis=on \
         hotmem.overflow=first hotmem.faults=128M:2:5:700 \
         hotmem.heap=32M hotmem.pin=on hotmem.dma=8M hotmem.writers=4M \
         hotmem.interrupts=intx hotmem.nvdimm=devdax hotmem.map=mem hotmem.tails=shared \
         hotmem.align=1G hotmem.rebinds=3 hotmem.watchdog=5 hotmem.cxl=system-ram hotmem.ways=4",
    );
    let expected = Options {
        touch: Touch::UpTo(Bytes::gib(1)),
        work: Bytes::gib(2),
        work_at: WorkAt::Inflated,
        hold: false,
        reports: false,
        report_rate: Some(Bytes::mib(64)),
        online: Online::Kernel,
        leftover: Leftover::Unplug,
        vetoes: 3,
        refused: 4,
        descriptors: true,
        check: Some(CheckedDevice::Balloon),
        check_known: KnownFailures::parse("balloon/actual-readback").unwrap(),
        check_host: false,
        exit: ExitWhen::Resizes(3),
        seed: 42,
        release: Release::Never,
        poison: Some(7),
        zero: ZeroMarks::Device,
        churn: true,
        nmis: true,
        late: Bytes::gib(2),
        overflow: Some(StackOf::FirstCpu),
        faults: Some(Faults { set: Bytes::mib(128), rounds: 2, bursts: 5, rest_ms: 700 }),
        heap: Bytes::mib(32),
        pin: true,
        dma: Bytes::mib(8),
        memory_written_by_cpus: Bytes::mib(4),
        interrupts: Interrupts::Intx,
        nvdimm: Some(Namespace::DevDax),
        cxl: Some(CxlMode::SystemRam),
        ways: 4,
        map: DescriptorPlace::Memory,
        shared_tails: true,
        compound: Compound::GIB_1,
        rebinds: 3,
        watchdog_seconds: 5,
    };
    assert_eq!(options, Ok(expected));
    let release = |line| parse(line).unwrap().release;
    assert_eq!(release("hotmem.release=unchecked"), Release::Unchecked);
    assert_eq!(release("hotmem.release=on"), Release::Checked);
    let zero = |line| parse(line).unwrap().zero;
    assert_eq!(zero("hotmem.zero=reported"), ZeroMarks::Reported);
    assert_eq!(zero("hotmem.zero=reported hotmem.zero=off"), ZeroMarks::Off);
    assert_eq!(parse("hotmem.touch=all").unwrap().touch, Touch::All);
    assert_eq!(parse("hotmem.nvdimm=fsdax").unwrap().nvdimm, Some(Namespace::FsDax));
    let namespace = parse("hotmem.nvdimm=system_ram").unwrap().nvdimm;
    assert_eq!(namespace, Some(Namespace::SystemRam));
    assert_eq!(parse("hotmem.cxl=devdax").unwrap().cxl, Some(CxlMode::DevDax));
    assert_eq!(parse("hotmem.exit=command").unwrap().exit, ExitWhen::Command);
    assert_eq!(parse("hotmem.exit=nvdimm").unwrap().exit, ExitWhen::Nvdimm);
    assert_eq!(parse("hotmem.overflow=other").unwrap().overflow, Some(StackOf::OtherCpu));
    assert_eq!(parse("hotmem.exit=boot").unwrap().exit, ExitWhen::Boot);
    assert_eq!(parse("hotmem.exit=boot hotmem.exit=never").unwrap().exit, ExitWhen::Never);
    let exit = parse("hotmem.exit=size:64G").unwrap().exit;
    assert_eq!(exit, ExitWhen::Size(Bytes::gib(64)));
    assert_eq!(parse("hotmem.exit=inflations:2").unwrap().exit, ExitWhen::Inflations(2));
    let exit = parse("hotmem.exit=reported:64M").unwrap().exit;
    assert_eq!(exit, ExitWhen::Reported(Bytes::mib(64)));
}

#[test]
fn sizes_have_suffixes() {
    assert_eq!(parse_size("0"), Some(Bytes(0)));
    assert_eq!(parse_size("4097"), Some(Bytes(4097)));
    assert_eq!(parse_size("3K"), Some(Bytes(3 << 10)));
    assert_eq!(parse_size("2T"), Some(Bytes::gib(2048)));
    for bad in ["", "K", "-1", "+1", "1k", "1.5G", "0x10", "1GB", "16777216T"] {
        assert_eq!(parse_size(bad), None, "{bad}");
    }
    assert_eq!(parse_size("18446744073709551616"), None);
}

#[test]
fn unknown_keys_and_bad_values_are_reported() {
    assert_eq!(parse("a hotmem.tuch=1G"), Err(CmdlineError::UnknownKey("hotmem.tuch=1G")));
    for bad in [
        "hotmem.align=4M",
        "hotmem.touch=",
        "hotmem.touch",
        "hotmem.work_at=reported",
        "hotmem.online=movable",
        "hotmem.descriptors=32",
        "hotmem.exit=resizes",
        "hotmem.exit=size:",
        "hotmem.exit=inflations",
        "hotmem.exit=reported:-1",
        "hotmem.seed=-1",
        "hotmem.release=yes",
        "hotmem.faults=128M:2:5",
        "hotmem.faults=128M:2:5:700:1",
        "hotmem.faults=0:2:5:700",
        "hotmem.churn=",
        "hotmem.nmis=2",
        "hotmem.overflow=1",
        "hotmem.late=x",
        "hotmem.heap=much",
        "hotmem.pin=1",
        "hotmem.writers=17M",
        "hotmem.interrupts=msi",
        "hotmem.nvdimm=raw",
        "hotmem.cxl=on",
        "hotmem.ways=3",
        "hotmem.map=ram",
        "hotmem.tails=on",
        "hotmem.rebinds=",
        "hotmem.watchdog=0",
    ] {
        assert_eq!(parse(bad), Err(CmdlineError::BadValue(bad)));
    }
}

#[test]
fn bytes_that_are_not_text_are_refused() {
    assert_eq!(Options::parse(b"quiet \xff"), Err(CmdlineError::NotText(6)));
}

/// The page has every key of [`Options`], and each example in it is accepted.
#[test]
fn the_page_on_the_guest_has_every_option() {
    let page = include_str!("../../../docs/guest.md");
    let examples =
        || page.lines().filter_map(|line| line.strip_prefix("| `hotmem.")?.split('`').next());
    for example in examples() {
        assert!(parse(&format!("hotmem.{example}")).is_ok(), "{example}");
    }
    let keys = include_str!("../cmdline.rs").split("(`hotmem.").skip(1);
    let keys = keys.map(|rest| rest.split(['`', '=']).next().unwrap());
    for key in keys {
        assert!(examples().any(|example| example.split('=').next() == Some(key)), "{key}");
    }
    assert!(examples().count() > 30);
}
