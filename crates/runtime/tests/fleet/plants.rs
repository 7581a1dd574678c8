//! Fleets whose cells have a planted fault.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use warren_base::{Errno, Ino};
use warren_proto::{AccessMode, CreateFlags, NewInode, Request};
use warren_runtime::control;

use super::SERVER;
use super::ground::{Files, ROOT, Scratch, connect, name_of};

/// A fleet in a process of its own, whose cells end when they make a file of a certain name.
fn poisoned(pool: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut server = Command::new(program);
    server.arg(SERVER).arg(pool).env("WARREN_PLANT", "poison").stdout(Stdio::piped());
    let mut child = server.spawn().expect("a fleet");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a word");
    assert_eq!(line, "ready\n");
    child
}

pub(crate) fn a_request_that_ends_every_cell_is_refused() {
    let scratch = Scratch::formatted("poison");
    let mut server = poisoned(&scratch.pool);
    let mut files = Files::of(&connect(&scratch.pool));
    files.make("before");
    let root = connect(&scratch.pool);
    let mut slot = root.slot().expect("slot");
    let (new, flags) = (NewInode::regular(0o600), CreateFlags::EXCLUSIVE);
    let access = AccessMode::READ;
    let poison = Request::Create { dir: Ino::ROOT, name: name_of("poison"), new, flags, access };
    assert_eq!(slot.call(ROOT, &poison, 0), Err(Errno::EIO));
    let status = control::status(&scratch.pool).expect("status");
    let restarts: u64 = status.cells.iter().map(|cell| cell.restarts).sum();
    assert_eq!(restarts, 3);
    // All others are executed.
    files.lookup(Ino::ROOT, "before");
    files.make("after");
    control::stop(&scratch.pool, control::StopOptions::default()).expect("stop");
    assert!(server.wait().expect("its end").success());
}
