//! The rights of peers of the control socket: user 0 without capabilities, and users beside each
//! other.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities,
};
use warren_base::{CAPABILITIES_OF_ROOT, Errno};
use warren_runtime::{
    Admission, Clients, ConnectOptions, Fleet, FleetError, FleetStatus, Lifetime, StopOptions,
    control, start_fleet,
};

use super::ground::Scratch;
use super::{BARE, VIEWER};

/// A user without privileges.
const USER: u32 = 65_534;

fn fleet_for_all(scratch: &Scratch) -> Fleet {
    let options = warren_runtime::ServeOptions { clients: Clients::All, ..scratch.options(1) };
    start_fleet(&options, Lifetime::WithStarter).expect("start")
}

fn front() -> ConnectOptions {
    ConnectOptions { front: true, ..ConnectOptions::default() }
}

/// Runs this test in another role, and returns what it prints.
fn played(role: &str, pool: &Path, uid: u32) -> String {
    let mut command = Command::new("/proc/self/exe");
    let child = command.arg(role).arg(pool).stdout(Stdio::piped()).uid(uid).spawn().expect("start");
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn user_0_without_capabilities_is_not_root() {
    if !geteuid().is_root() {
        return;
    }
    let scratch = Scratch::formatted("bare");
    let fleet = fleet_for_all(&scratch);
    assert_eq!(played(BARE, &scratch.pool, 0), "all refused, 0 clients shown");
    let had = capabilities(None).expect("ours").permitted;
    for lost in had & CapabilitySet::from_bits_retain(CAPABILITIES_OF_ROOT) {
        assert_eq!(played(&format!("{BARE}={}", lost.bits()), &scratch.pool, 0), "refused");
    }
    drop(warren_runtime::connect(&scratch.pool, &front()).expect("root may mount"));
    fleet.stop().expect("stop");
    let starter_is_bare = played(BARE, Path::new("/"), 0);
    assert_eq!(starter_is_bare, "owner");
}

/// The role of a process with user 0 that lacks one capability.
pub(crate) fn lack(lost: &str, pool: &Path) -> ExitCode {
    let lost = CapabilitySet::from_bits_retain(lost.parse().expect("a number"));
    let had = capabilities(None).expect("ours");
    set_capabilities(None, CapabilitySets { effective: had.effective - lost, ..had })
        .expect("less");
    refused(Admission::ask(pool, &ConnectOptions::SMALL).map(drop), "client");
    print!("refused");
    ExitCode::SUCCESS
}

fn refused(outcome: Result<(), FleetError>, what: &str) {
    match outcome {
        Err(FleetError::Refused(Errno::EPERM)) => {}
        other => panic!("{what}: {other:?}"),
    }
}

/// The role of a process with user 0 that has no capabilities.
pub(crate) fn be_bare(pool: &Path) -> ExitCode {
    for capability in capabilities(None).expect("ours").permitted {
        // Programs that it executes get none either.
        remove_capability_from_bounding_set(capability).expect("removed");
    }
    let nothing = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, nothing).expect("no capabilities");
    if pool == Path::new("/") {
        own_fleet();
        print!("owner");
        return ExitCode::SUCCESS;
    }
    let client = ConnectOptions::SMALL;
    refused(Admission::ask(pool, &client).map(drop), "client");
    refused(Admission::ask(pool, &front()).map(drop), "front");
    let options = StopOptions { force: false, discard: false, if_unused: false };
    refused(control::stop(pool, options), "stop");
    let shown = control::status(pool).expect("status").clients.len();
    print!("all refused, {shown} clients shown");
    ExitCode::SUCCESS
}

/// A fleet that was started without capabilities is its starter's, who has as many.
fn own_fleet() {
    let scratch = Scratch::formatted("bare-owner");
    let fleet = start_fleet(&scratch.options(1), Lifetime::WithStarter).expect("start");
    drop(warren_runtime::connect(&scratch.pool, &front()).expect("its own front"));
    fleet.stop().expect("stop");
}

pub(crate) fn a_user_sees_only_own_clients() {
    if !geteuid().is_root() {
        return;
    }
    let scratch = Scratch::formatted("viewer");
    let fleet = fleet_for_all(&scratch);
    let mounted = Path::new("/of/root");
    let of_root = Admission::ask_mounted(&scratch.pool, &front(), mounted).expect("root's mount");
    let shown = played(VIEWER, &scratch.pool, USER);
    assert_eq!(shown, format!("[{USER}] false"));
    let all = control::status(&scratch.pool).expect("status").clients;
    assert!(all.iter().any(|client| client.mounted.as_deref() == mounted.to_str()), "{all:?}");
    drop(of_root);
    fleet.stop().expect("stop");
}

/// The role of a client that prints the users that status shows, and whether it shows a mount.
pub(crate) fn view(pool: &Path) -> ExitCode {
    let own = Admission::ask(pool, &ConnectOptions::SMALL).expect("a client");
    let FleetStatus { clients, .. } = control::status(pool).expect("status");
    let users: Vec<u32> = clients.iter().map(|client| client.uid).collect();
    print!("{users:?} {}", clients.iter().any(|client| client.mounted.is_some()));
    drop(own);
    ExitCode::SUCCESS
}
