//! Checks that do more than compare output: the library itself, emptied environments, reports, and
//! debuggers.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::case::{Outcome, compile};
use crate::command::{Report, exists, run};
use crate::image::{Image, VARIABLE};
use crate::product::{Product, WAYS};

type Check = fn(&Product) -> Outcome;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("library", library),
    ("environments", environments),
    ("ways_out", ways_out),
    ("reports", reports),
    ("debuggers", debuggers),
    ("images", images),
    ("cost", cost),
];

fn passed_if(right: bool, what: impl FnOnce() -> String) -> Outcome {
    if right { Outcome::Passed(String::new()) } else { Outcome::Failed(what()) }
}

fn output_of(program: &str, args: &[&str], product: &Product) -> String {
    let output = Command::new(program).args(args).arg(&product.library).output();
    String::from_utf8_lossy(&output.expect("a tool that exists").stdout).into_owned()
}

/// The library needs no other, calls no function of the program, keeps the upper halves of vector
/// registers and the x87 state, and uses no thread-local storage. It makes calls in the stub page.
/// Only the client, which no handler interrupts, makes them where it stands.
fn library(product: &Product) -> Outcome {
    if !exists("objdump") || !exists("nm") {
        return Outcome::Skipped("no objdump".to_owned());
    }
    let symbols = output_of("nm", &[], product);
    let address = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(name)).expect("a symbol");
        u64::from_str_radix(&line[..16], 16).expect("an address")
    };
    let stub = address(" warren_stub_start")..address(" warren_stub_end");
    let code = output_of("objdump", &["-dw", "--no-show-raw-insn"], product);
    let mut wrong: Vec<String> = Vec::new();
    let mut instructions = 0;
    let mut is_of_client = false;
    for line in code.lines() {
        let Some((at, text)) = line.split_once(":\t") else {
            if let Some((_, symbol)) = line.split_once(" <") {
                is_of_client = is_clients(symbol);
            }
            continue;
        };
        instructions += 1;
        let at = u64::from_str_radix(at.trim(), 16).unwrap_or(0);
        let name = text.split_whitespace().next().unwrap_or_default();
        let calls = matches!(name, "syscall" | "int" | "sysenter") && !stub.contains(&at);
        let calls = calls && !(name == "syscall" && is_of_client);
        let state = ["%ymm", "%zmm", "%st", "%mm", "%fs:", "%gs:", "@plt"];
        let touches = state.iter().any(|state| text.contains(state));
        // Baseline instructions that start with f are those of x87, and fences do not.
        let x87 = name.starts_with('f') || name.contains("xsave") || name.contains("xrstor");
        if calls || touches || x87 || name.starts_with('v') {
            wrong.push(line.to_owned());
        }
    }
    let needs = output_of("objdump", &["-p"], product);
    wrong.extend(needs.lines().filter(|line| line.contains("NEEDED")).map(str::to_owned));
    let undefined = output_of("nm", &["-D", "--undefined-only"], product);
    // Weak: musl has it, and without it the loader passes the environment.
    wrong.extend(undefined.lines().filter(|line| !line.ends_with(" w environ")).map(str::to_owned));
    let exported = output_of("nm", &["-D", "--defined-only"], product);
    wrong.extend(exported.lines().filter(|line| !line.ends_with(" la_version")).map(str::to_owned));
    // Each is a mapping in each process.
    let segments = needs.lines().filter(|line| line.trim_start().starts_with("LOAD")).count();
    if segments > 2 {
        wrong.push(format!("{segments} segments"));
    }
    passed_if(wrong.is_empty() && instructions > 0, || format!("{wrong:#?}"))
}

/// Whether a function belongs to the client, or to the libraries that only the client uses.
fn is_clients(symbol: &str) -> bool {
    let names = ["rustix", "warren_transport", "warren_shm", "alloc", "fleet"];
    let is_ours = symbol.contains("warren_interpose") && !symbol.contains("fleet");
    !is_ours && names.iter().any(|name| symbol.contains(name))
}

/// Each program of a chain has the library, although each environment is built from nothing.
fn environments(product: &Product) -> Outcome {
    let Some(program) = compile(product, "environment") else {
        return Outcome::Skipped("no gcc".to_owned());
    };
    let output = product.scratch.join("output");
    let alone = run(&mut Command::new(&program), &output);
    for way in WAYS {
        let report = product.scratch.join("report");
        let mut command = Command::new(&program);
        command.env(way, &product.library).env("WARREN_REPORT", &report);
        let seen = run(&mut command, &output);
        if seen.status != 0 || seen.output != alone.output.replace("library 0", "library 1") {
            return Outcome::Failed(format!("{way}: {seen:?}"));
        }
    }
    Outcome::Passed(String::new())
}

/// A user keeps the library out of a program and its children by taking it out of an environment,
/// or by a variable. Programs that valgrind runs or a tracer starts are left alone.
fn ways_out(product: &Product) -> Outcome {
    let (output, report) = (product.scratch.join("output"), product.scratch.join("report"));
    let child = "cat /proc/self/maps | grep -c libwarren_interpose";
    let nested = format!("{child}; env -i sh -c '{child}'");
    for (way, off, expected) in [
        ("taken out", "env -u LD_PRELOAD -u LD_AUDIT", ["0\n0\n", ""]),
        ("emptied", "env LD_PRELOAD= LD_AUDIT=", ["0\n0\n", ""]),
        ("others", "env LD_PRELOAD=libc.so.6 LD_AUDIT=", ["2\n2\n", "ended"]),
        ("the variable", "env WARREN_INTERPOSE=off", ["2\n0\n", "aside: WARREN_INTERPOSE is set"]),
        ("on", "env WARREN_INTERPOSE=on", ["2\n2\n", "ended"]),
        ("strace", "strace -o /dev/null", ["2\n0\n", "aside: a tracer has started it"]),
        ("rr", "env RUNNING_UNDER_RR=1", ["2\n0\n", "aside: rr runs it"]),
        ("valgrind", "valgrind -q", ["2\n2\n", "aside: valgrind runs it"]),
    ] {
        let tool = off.split(' ').next().unwrap_or_default();
        if !exists(tool) {
            continue;
        }
        let _ = std::fs::remove_file(&report);
        let script = format!("exec {off} sh -c {nested:?}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("WARREN_REPORT", &report);
        let seen = run(command.env(WAYS[0], &product.library), &output);
        let text = std::fs::read_to_string(&report).unwrap_or_default();
        let is_reported = text.lines().any(|line| line.ends_with(expected[1]));
        if seen.output != expected[0] || !(expected[1].is_empty() || is_reported) {
            return Outcome::Failed(format!("{way}: {seen:?} {text}"));
        }
    }
    Outcome::Passed(String::new())
}

/// A report goes to a descriptor, and not into a file that the program has put there. A program
/// that has closed the descriptor writes none.
fn reports(product: &Product) -> Outcome {
    let output = product.scratch.join("output");
    let report = product.scratch.join("report");
    let other = product.scratch.join("other");
    for way in WAYS {
        for script in ["exit 3", "exec 9>\"$OTHER\"; exit 3", "exec 9>&-; exit 3"] {
            std::fs::write(&report, "").expect("an empty file");
            let mut command = Command::new("sh");
            let with_library =
                format!("9>>\"$REPORT\" exec env {way}=\"$LIBRARY\" sh -c '{script}'");
            command.args(["-c", &with_library]).env("WARREN_REPORT", "9");
            command.env("REPORT", &report).env("OTHER", &other).env("LIBRARY", &product.library);
            let seen = run(&mut command, &output);
            let found = Report::read(&report);
            let others = std::fs::read_to_string(&other).unwrap_or_default();
            let expected = u64::from(script == "exit 3");
            let sums = found.patched + found.dispatched == found.passed;
            if seen.status != 3 || !seen.output.is_empty() || found.processes != expected || !sums {
                return Outcome::Failed(format!("{way}: {script}: {seen:?} {found:?}"));
            }
            if !others.is_empty() {
                return Outcome::Failed(format!("{way}: a report in the program's file"));
            }
        }
    }
    Outcome::Passed(String::new())
}

/// A debugger and a tracer follow a program that has the library.
fn debuggers(product: &Product) -> Outcome {
    let Some(program) = compile(product, "children") else {
        return Outcome::Skipped("no gcc".to_owned());
    };
    let output = product.scratch.join("output");
    let program = program.to_str().expect("a path");
    let library = product.library.to_str().expect("a path");
    let mut ran = Vec::new();
    for way in WAYS {
        let variable = format!("{way}={library}");
        let set = format!("set environment {variable}");
        let quiet = "handle SIGSYS nostop noprint pass";
        let stop = "break getppid";
        let gdb = [
            "-q",
            "-batch",
            "-ex",
            "set startup-with-shell off",
            "-ex",
            &set,
            "-ex",
            quiet,
            "-ex",
            stop,
            "-ex",
            "run",
            "-ex",
            "backtrace",
            "-ex",
            "delete",
            "-ex",
            "continue",
            program,
        ];
        let strace = ["-f", "-o", "/dev/null", "-E", &variable, program];
        for (tool, args, ending) in
            [("gdb", &gdb[..], "exited normally"), ("strace", &strace[..], "spawned\n")]
        {
            if exists(tool) {
                let seen = run(Command::new(tool).args(args), &output);
                if seen.status != 0 || !seen.output.contains(ending) {
                    return Outcome::Failed(format!("{tool}, {way}: {seen:?}"));
                }
                ran.push(tool);
            }
        }
    }
    if ran.is_empty() {
        return Outcome::Skipped("no gdb and no strace".to_owned());
    }
    Outcome::Passed(format!("({})", ran.join(", ")))
}

/// An image is filled once, mapped by programs that make calls, and makes dispatch rare. What is no
/// image is left as it is, and does no harm.
fn images(product: &Product) -> Outcome {
    let output = product.scratch.join("output");
    let report = product.scratch.join("report");
    let copy = product.scratch.join("copy");
    let file = product.scratch.join("file");
    std::fs::write(&file, "warren text new\n").expect("written");
    let run_with = |value: &str| {
        let _ = std::fs::remove_file(&report);
        let mut command = Command::new("cp");
        command.arg(&product.library).arg(&copy).env(VARIABLE, value);
        command.env(WAYS[0], &product.library).env("WARREN_REPORT", &report);
        let seen = run(&mut command, &output);
        (seen.status, Report::read(&report))
    };
    let image = Image::new();
    let path = image.path().expect("a file");
    // A process that may not make a file so long goes without the image, and another one fills it.
    let mut limited = Command::new("ls");
    limited.arg("/").env(VARIABLE, &path).env(WAYS[0], &product.library);
    limit_files(&mut limited);
    let status = run(&mut limited, &output).status;
    if status != 0 || image.bytes().len() > 16 {
        return Outcome::Failed(format!("a limit of the length of files: {status}"));
    }
    if let Some(failed) = image_taken(product).or_else(|| image_terminal(product)) {
        return failed;
    }
    let mut first = Vec::new();
    for round in 0..3 {
        let (status, report) = run_with(&path);
        let bytes = image.bytes();
        let filled = bytes.len() > 1 << 16 && (round == 0 || bytes == first);
        if status != 0 || !report.text.contains("\nimage 1\n") || !filled || report.dispatched > 8 {
            return Outcome::Failed(format!("round {round}: {status}, {}", report.text));
        }
        first = bytes;
    }
    let of_another_library = Image::holding(&[&first[..16], &[0; 48][..], &first[64..]].concat());
    of_another_library.seal();
    let not_sealed = Image::holding(&first);
    let short = Image::holding(&first[..4096]);
    short.seal();
    let others = [of_another_library, not_sealed, short, Image::holding(b"text")];
    let values = others.iter().map(|other| (other.path().expect("a file"), other.bytes()));
    let pipe = product.scratch.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let pipe = pipe.to_str().expect("a name");
    let strange = ["", "/nonexistent", "/dev/null", "/", pipe];
    let strange = strange.map(|path| (path.to_owned(), Vec::new()));
    let own = file.to_str().expect("a name").to_owned();
    let written = std::fs::read(&file).expect("read");
    for (value, bytes) in values.chain(strange).chain([(own, written)]) {
        let (status, report) = run_with(&value);
        let is_same = bytes.is_empty() || std::fs::read(&value).expect("read") == bytes;
        if status != 0 || !is_same || report.text.contains("\nimage 1\n") {
            return Outcome::Failed(format!("{value:?}: {status}, {is_same}, {}", report.text));
        }
    }
    Outcome::Passed(String::new())
}

/// Another process goes on filling the image: sites are patched one by one after a while.
fn image_taken(product: &Product) -> Option<Outcome> {
    const LOOPS: u64 = 2_000;
    const DISPATCHED_MAX: u64 = 500;
    let (output, report) = (product.scratch.join("output"), product.scratch.join("report"));
    let image = Image::new();
    let path = image.path().expect("a file");
    let lock = std::fs::File::options().write(true).open(&path).expect("opened");
    lock.lock().expect("locked");
    let _ = std::fs::remove_file(&report);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("i=0; while [ $i -lt {LOOPS} ]; do cd /; i=$((i+1)); done")]);
    command.env(VARIABLE, &path).env(WAYS[0], &product.library).env("WARREN_REPORT", &report);
    let status = run(&mut command, &output).status;
    let seen = Report::read(&report);
    let right = status == 0 && seen.passed >= LOOPS && seen.dispatched < DISPATCHED_MAX;
    (!right).then(|| Outcome::Failed(format!("an image that is filled: {status}, {}", seen.text)))
}

/// The path leads to a terminal: it does not become that of the session.
fn image_terminal(product: &Product) -> Option<Outcome> {
    let output = product.scratch.join("output");
    let terminal = std::fs::File::options().read(true).write(true).open("/dev/ptmx");
    let Ok(terminal) = terminal else { return None };
    let (mut number, unlocked) = (0_u32, 0_i32);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&terminal);
    // SAFETY: the kernel reads one integer and writes the other.
    let made = unsafe {
        libc::ioctl(fd, libc::TIOCSPTLCK, &raw const unlocked) == 0
            && libc::ioctl(fd, libc::TIOCGPTN, &raw mut number) == 0
    };
    assert!(made, "no terminal: {}", std::io::Error::last_os_error());
    let mut command = Command::new("setsid");
    let show = "cd /; ls / >/dev/null; cut -d ' ' -f 7 /proc/self/stat";
    command.args(["--wait", "sh", "-c", show]);
    command.env(VARIABLE, format!("/dev/pts/{number}")).env(WAYS[0], &product.library);
    let seen = run(&mut command, &output);
    (seen.output != "0\n").then(|| Outcome::Failed(format!("a terminal: {}", seen.output)))
}

/// Files of the command become no longer than 100 kB.
fn limit_files(command: &mut Command) {
    let length = libc::rlimit { rlim_cur: 100_000, rlim_max: 100_000 };
    // SAFETY: the closure makes one call, and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            let set = libc::setrlimit(libc::RLIMIT_FSIZE, &raw const length);
            if set == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

/// Not a test of costs, which depend on the machine: prints them.
fn cost(product: &Product) -> Outcome {
    let Some(program) = compile(product, "cost") else {
        return Outcome::Skipped("no gcc".to_owned());
    };
    let output = product.scratch.join("output");
    let mut lines = String::new();
    for way in ["WITHOUT", "LD_PRELOAD", "LD_AUDIT"] {
        for args in [&[][..], &["300", "/bin/true"]] {
            let mut command = Command::new(&program);
            let seen = run(command.args(args).env(way, &product.library), &output);
            if seen.status != 0 {
                return Outcome::Failed(format!("{way}: {seen:?}"));
            }
            lines += &format!("\n  {way}: {}", seen.output.trim());
        }
    }
    Outcome::Passed(lines)
}
