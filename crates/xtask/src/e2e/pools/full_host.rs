//! Sparse pools on a full host file system: a small tmpfs, and a small ext4 on a loop device. And a
//! pool on an ext2, which can neither allocate blocks nor take them back, but has room. And a host
//! that completes nothing for a while.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::process::{self, Outcome};

const SCRIPT_LIMIT: Duration = Duration::from_secs(120);

/// Fills the pool's host with synced files, and records them; then runs requests that free room or
/// need none.
const FILL: &str = r#"
    mkdir empty d; echo precious > kept; sync kept; last=0
    for i in $(seq 300); do
      head -c 500000 /dev/urandom > d/f$i 2>/dev/null && sync d/f$i 2>/dev/null || break
      cksum d/f$i >> "$SUMS"; last=$i
    done
    test $last -gt 8 -a $last -lt 300 || { echo "$last files fitted"; exit 40; }
    rm -f d/f$((last+1))
    for i in $(seq 12); do mv d/f1 d/g; mv d/g d/f1; done
    chmod 600 kept; rmdir empty; head -c 100 d/f2 | cmp - <(head -c 100 d/f2)
    while read -r sum bytes name; do
      test "$(cksum < $name)" = "$sum $bytes" || { echo "$name differs"; exit 41; }
    done < "$SUMS"
    free() { stat -f -c %a .; }
    before=$(free); rm d/f3 d/f4 d/f5 d/f6 d/f7 d/f8; after=$(free)
    test $((after - before)) -gt 600 || { echo "free $before, then $after blocks"; exit 42; }
    sed -i '/f[345678]$/d' "$SUMS"
    for i in $(seq 60); do
      head -c 500000 /dev/urandom > again 2>/dev/null && sync again 2>/dev/null && break
      test $i -lt 60 || { echo "no room again"; exit 43; }
      rm -f again; sleep 0.5
    done
"#;

/// The commands that make a small file system, and make it larger.
struct Host {
    name: &'static str,
    make: &'static str,
    grow: &'static str,
}

const HOSTS: &[Host] = &[
    Host {
        name: "tmpfs",
        make: "mount -t tmpfs -o size=60m tmpfs \"$HOST\"",
        grow: "mount -o remount,size=100m \"$HOST\"",
    },
    Host {
        name: "ext4",
        make: "truncate -s 70M \"$HOST.image\"; mkfs.ext4 -q -m 0 \"$HOST.image\"
               mount -o loop \"$HOST.image\" \"$HOST\"; head -c 5M /dev/zero > \"$HOST/ballast\"",
        grow: "rm \"$HOST/ballast\"; sync -f \"$HOST\"",
    },
];

const EXT4: &str = "truncate -s 400M \"$HOST.image\"; mkfs.ext4 -q \"$HOST.image\"
    mount -o loop \"$HOST.image\" \"$HOST\"";

const EXT2: &str = "truncate -s 100M \"$HOST.image\"; mkfs.ext2 -q -m 0 \"$HOST.image\"
    mount -o loop \"$HOST.image\" \"$HOST\"";

/// While the host is frozen, a program waits, and the status names the device.
const FREEZE: &str = r#"
    echo kept > a; sync a
    silent() { [[ $("$WARREN" status "$HOST/pool") = *"THE DEVICE"* ]]; }
    trap 'fsfreeze --unfreeze "$HOST"' EXIT
    fsfreeze --freeze "$HOST"
    { echo more > b; sync b; } &
    for i in $(seq 600); do silent && break; sleep 0.1; done
    silent || { echo "the status does not name the device"; exit 46; }
    jobs -r | grep -q . || { echo "sync has returned"; exit 47; }
    fsfreeze --unfreeze "$HOST"; trap - EXIT
    wait
    for i in $(seq 600); do silent || break; sleep 0.1; done
    ! silent || { echo "the status names the device still"; exit 48; }
    test "$(cat a b)" = "$(printf 'kept\nmore')"
"#;

/// Writes less than the host has room for.
const WRITE: &str = r#"
    mkdir d
    for i in $(seq 20); do
      head -c 500000 /dev/urandom > d/f$i; sync d/f$i; cksum d/f$i >> "$SUMS"
    done
    rm d/f3; sed -i '/f3$/d' "$SUMS"
"#;

/// Fills a host that cannot allocate, and frees some room again for the files of that directory.
/// The host keeps blocks, so only cells that have them can use them.
const FILL_AND_FREE: &str = r#"
    mkdir d; last=0
    for i in $(seq 300); do
      head -c 500000 /dev/urandom > d/f$i 2>/dev/null && sync d/f$i 2>/dev/null || break
      cksum d/f$i >> "$SUMS"; last=$i
    done
    test $last -gt 20 -a $last -lt 300 || { echo "$last files fitted"; exit 46; }
    rm -f d/f$((last+1)) d/f3 d/f4 d/f5 d/f6 d/f7 d/f8
    sed -i '/f[345678]$/d' "$SUMS"
    for i in $(seq 60); do
      head -c 500000 /dev/urandom > d/again 2>/dev/null && sync d/again 2>/dev/null && break
      test $i -lt 60 || { echo "no room again"; exit 47; }
      rm -f d/again; sleep 0.5
    done
    cksum d/again >> "$SUMS"
"#;

const LOOK: &str = r#"while read -r sum bytes name; do
    test "$(cksum < $name)" = "$sum $bytes" || { echo "$name is lost"; exit 44; }; done < "$SUMS""#;

/// A pool on a loop device that runs out of room, as a thin one does. A stop is refused, then there
/// is room.
const FAILING_DEVICE: &str = r#"
    mount -t tmpfs -o size=40m tmpfs "$HOST"; cd "$HOST"
    truncate -s 200M image; loop=$(losetup -f --show image); serving=
    trap 'kill $serving 2>/dev/null || true; wait; losetup -d $loop' EXIT
    "$WARREN" mkfs --log-size 8M $loop
    "$WARREN" serve --cells $CELLS --pool $loop & serving=$!
    for i in $(seq 200); do "$WARREN" status $loop > /dev/null 2>&1 && break; sleep 0.05; done
    mkdir mounted; "$WARREN" mount $loop mounted
    last=0
    for i in $(seq 200); do
      head -c 500000 /dev/urandom > mounted/f$i && sync mounted/f$i || break; last=$i
    done
    test $last -gt 5 -a $last -lt 200 || { echo "$last files fitted"; exit 40; }
    rc=0; "$WARREN" stop $loop || rc=$?; test $rc = 9 || { echo "stop: $rc"; exit 41; }
    # The mounts are served on, as if nothing had been asked; so it is with force.
    rc=0; said=$("$WARREN" stop --force $loop 2>&1) || rc=$?
    test $rc = 9 -a "$(wc -l <<< "$said")" = 1 || { echo "stop --force: $rc: $said"; exit 42; }
    mountpoint -q mounted || { echo "the mount is gone"; exit 43; }
    cksum mounted/f2; ls mounted > /dev/null; "$WARREN" status $loop
    mount -o remount,size=120m "$HOST"
    for i in $(seq 30); do sync mounted/f$last && break; sleep 0.5; done
    sync mounted/f$last
    "$WARREN" stop $loop; wait $serving; "$WARREN" fsck -n $loop
"#;

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if ground.options.wants("refused_stop") {
        tally.case(&format!("refused_stop ({cells} cells)"), || {
            let place = ground.path(&format!("failing-{cells}"));
            std::fs::create_dir_all(&place)?;
            let mut command = Command::new("bash");
            command.args(["-euo", "pipefail", "-c", FAILING_DEVICE]).env("LC_ALL", "C");
            command.env("HOST", &place).env("CELLS", cells.to_string());
            command.env("WARREN", &ground.warren).current_dir(ground.path("run"));
            let outcome = process::run(command, &ground.path("run"), SCRIPT_LIMIT)?;
            let _detached = process::quietly("umount", &["--lazy", &place.to_string_lossy()]);
            outcome.expect_success("stopping").map(|_| Verdict::Passed)
        });
    }
    if ground.options.wants("host_without_fallocate") {
        tally.case(&format!("host_without_fallocate ({cells} cells)"), || {
            on_host(ground, "ext2", EXT2, cells, |name| {
                let fleet = Fleet::start(ground, &format!("{name}/pool"), "64M", cells)?;
                during(ground, fleet, name, WRITE)?;
                let fleet = Fleet::resume(ground, &format!("{name}/pool"), cells % 3 + 1)?;
                during(ground, fleet, name, LOOK)
            })?;
            Ok(Verdict::Passed)
        });
        tally.case(&format!("host_without_fallocate, full ({cells} cells)"), || {
            on_host(ground, "full-ext2", EXT2, cells, |name| {
                let fleet = Fleet::start(ground, &format!("{name}/pool"), "256M", cells)?;
                during(ground, fleet, name, FILL_AND_FREE)?;
                let fleet = Fleet::resume(ground, &format!("{name}/pool"), cells % 3 + 1)?;
                during(ground, fleet, name, LOOK)
            })?;
            Ok(Verdict::Passed)
        });
    }
    if ground.options.wants("silent_device") {
        tally.case(&format!("silent_device ({cells} cells)"), || {
            on_host(ground, "silent", EXT4, cells, |name| {
                let fleet = Fleet::start(ground, &format!("{name}/pool"), "256M", cells)?;
                during(ground, fleet, name, FREEZE)
            })?;
            Ok(Verdict::Passed)
        });
    }
    if ground.options.wants("full_host") {
        for host in HOSTS {
            tally.case(&format!("full_host on {} ({cells} cells)", host.name), || {
                on_host(ground, host.name, host.make, cells, |name| {
                    on_full_host(ground, host, name, cells)
                })?;
                Ok(Verdict::Passed)
            });
        }
    }
}

fn bash(ground: &Ground, directory: &Path, host: &Path, script: &str) -> Result<Outcome> {
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory).env("LC_ALL", "C");
    command.env("HOST", host).env("SUMS", host.with_extension("sums"));
    command.env("WARREN", &ground.warren);
    process::run(command, &ground.path("run"), SCRIPT_LIMIT)
}

/// Runs a script in the mount, and stops the fleet.
fn during(ground: &Ground, fleet: Fleet, host: &str, script: &str) -> Result<()> {
    let done = bash(ground, &fleet.mounted, &ground.path(host), script);
    if let Err(error) = done.and_then(|outcome| outcome.expect_success("a script")) {
        fleet.kill();
        return Err(error);
    }
    fleet.stop_and_check()
}

/// Makes a host, and does something on it. `work` is given its name.
fn on_host(
    ground: &Ground,
    kind: &str,
    make: &str,
    cells: u16,
    work: impl FnOnce(&str) -> Result<()>,
) -> Result<()> {
    let name = format!("host-{kind}-{cells}");
    let place = ground.path(&name);
    std::fs::create_dir_all(&place)?;
    bash(ground, &ground.path("run"), &place, make)?.expect_success("making the host")?;
    let result = work(&name);
    let _detached = process::quietly("umount", &["--lazy", &place.to_string_lossy()]);
    result
}

fn on_full_host(ground: &Ground, host: &Host, name: &str, cells: u16) -> Result<()> {
    let place = ground.path(name);
    // More than there is, and nothing is left behind.
    let whole = place.join("whole");
    let refused =
        warren(ground, &["mkfs", "--size", "256M", "--reserve", &whole.to_string_lossy()])?;
    ensure!(refused.code() == 1 && !whole.exists(), "mkfs --reserve: exit {}", refused.code());
    let pool = format!("{name}/pool");
    let fleet = Fleet::start(ground, &pool, "256M", cells)?;
    let filled = bash(ground, &fleet.mounted, &place, FILL)?.expect_success("filling").and_then(|_| {
        let refill = "for i in $(seq 100); do
            head -c 500000 /dev/zero > more$i 2>/dev/null || { rm -f more$i; exit 0; }; done; exit 45";
        bash(ground, &fleet.mounted, &place, refill)?.expect_success("filling again")?;
        bash(ground, &fleet.mounted, &place, host.grow)?.expect_success("growing")?;
        // Clients that wait for nothing continue at once.
        let more = "head -c 2000000 /dev/zero > grown; sync grown";
        bash(ground, &fleet.mounted, &place, more)?.expect_success("going on")
    });
    if let Err(error) = filled {
        fleet.kill();
        return Err(error);
    }
    fleet.stop_and_check()?;
    let fleet = Fleet::resume(ground, &pool, cells % 3 + 1)?;
    during(ground, fleet, name, &format!("test \"$(cat kept)\" = precious; {LOOK}"))
}
