//! A pool that grows: while two programs write, the supervisor is killed and the host has no room;
//! and while no fleet serves it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::e2e::harness::fleet::{Fleet, warren};
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::preloaded;
use crate::e2e::harness::process;

const LIMIT: Duration = Duration::from_secs(180);

/// Two programs write more than the pool has, and go on where there is room. Meanwhile the pool
/// grows, at first by a little and at last so that its region map gets more pages. Each time the
/// supervisor is killed at another moment.
const SERVED: &str = r#"
    supervisor() { "$WARREN" status --json "$POOL" | grep -o '"supervisor_pid":[0-9]*' | cut -d: -f2; }
    total() { stat -f -c %b .; }
    writer() {
      mkdir $1
      for i in $(seq 90); do
        until head -c 500000 /dev/urandom 2>/dev/null > $1/$i && sync $1/$i 2>/dev/null; do
          : > "$PLACE/full-$1"; sleep 0.05
          test ! -e "$PLACE/over" || exit 1
        done
        cksum $1/$i >> "$PLACE/sums-$1"
      done
    }
    writers=; trap ': > "$PLACE/over"; wait' EXIT
    for name in a b; do writer $name & writers="$writers $!"; done
    for i in $(seq 400); do
      test -e "$PLACE/full-a" -a -e "$PLACE/full-b" && break; sleep 0.1
    done
    test -e "$PLACE/full-a" -a -e "$PLACE/full-b" || { echo "the pool is never full"; exit 40; }
    pause=0
    for size in 72M 90M 110M; do
      before=$(total); doomed=$(supervisor)
      "$WARREN" grow "$POOL" $size & growing=$!
      sleep 0.0$pause; kill -KILL $doomed; pause=$((pause + 1))
      wait $growing || { echo "not grown to $size"; exit 41; }
      after=$(total); test $after -gt $before || { echo "$size: $before, then $after"; exit 42; }
    done
    "$WARREN" grow "$POOL" 600M; test $(total) -gt 140000 || { echo "$(total) of 600M"; exit 43; }
    "$WARREN" grow --json "$POOL" 1200M | grep '"size_bytes":1258291200,' > /dev/null
    for writer in $writers; do wait $writer || { echo "a writer gave up"; exit 44; }; done
    # Some of the new space, also the part whose map lies among the chunks.
    head -c 580M /dev/zero > large; sync large; rm large
"#;

/// Every file that a writer has finished is as it was.
const LOOK: &str = r#"
    for name in a b; do
      while read -r sum bytes file; do
        test "$(cksum < $file)" = "$sum $bytes" || { echo "$file is lost"; exit 45; }
      done < "$PLACE/sums-$name"
    done
    test "$(cat "$PLACE"/sums-* | wc -l)" = 180
"#;

/// Sizes and pools that are refused, with their exit codes, change nothing.
const REFUSED: &str = r#"
    refused() {
      code=$1; shift; rc=0; said=$("$@" 2>&1 > /dev/null) || rc=$?
      test $rc = $code -a "$(wc -l <<< "$said")" = 1 || { echo "$*: exit $rc, not $code: $said"; exit 46; }
    }
    length=$(stat -c %s "$POOL")
    refused 2 "$WARREN" grow "$POOL" 64M
    refused 2 "$WARREN" grow "$POOL" 1200M
    refused 2 "$WARREN" grow "$POOL" 100T
    refused 2 "$WARREN" grow "$POOL"
    refused 2 "$WARREN" grow "$POOL" banana
    refused 5 setpriv --reuid 54321 --clear-groups "$WARREN" grow "$POOL" 2G
    head -c 1M /dev/zero > "$PLACE/none"
    refused 3 "$WARREN" grow "$PLACE/none" 2G
    refused 7 "$WARREN" grow "$PLACE/absent" 2G
    test $length = $(stat -c %s "$POOL")
"#;

/// A file that is longer than its pool is reported, and the pool takes the rest.
const BEHIND: &str = r#"
    truncate -s +10M "$POOL"
    "$WARREN" status "$POOL" | grep 'has 10485760 bytes behind its pool' > /dev/null
    "$WARREN" fsck -n --online "$POOL" | grep 'has 10485760 bytes behind its pool' > /dev/null
    "$WARREN" grow "$POOL"
    ! "$WARREN" status "$POOL" | grep 'behind its pool' > /dev/null || { echo "still behind"; exit 47; }
"#;

/// A pool that is wholly allocated on a small host. It keeps its size and its file if there is no
/// room for more.
const NO_ROOM: &str = r#"
    mkdir "$PLACE/small"; mount -t tmpfs -o size=100m tmpfs "$PLACE/small"
    trap 'umount --lazy "$PLACE/small"' EXIT
    pool=$PLACE/small/pool; mounted=$PLACE/small-mount; mkdir "$mounted"
    "$WARREN" mkfs --size 64M --reserve "$pool"
    refused() {
      rc=0; said=$("$WARREN" grow "$pool" 128M 2>&1) || rc=$?
      test $rc = 1 -a "$(wc -l <<< "$said")" = 1 || { echo "$1: exit $rc: $said"; exit 48; }
      grep -q 'no space left' <<< "$said" || { echo "$1: $said"; exit 49; }
      test $(stat -c %s "$pool") = 67108864 || { echo "$1: it is longer"; exit 50; }
    }
    refused offline
    "$WARREN" mount "$pool" "$mounted"; refused served
    mount -o remount,size=200m "$PLACE/small"; "$WARREN" grow "$pool" 128M
    "$WARREN" stop "$pool"; "$WARREN" fsck -n "$pool"
    test $(stat -c %b "$pool") -ge $((128 * 2048)) || { echo "not allocated"; exit 51; }
"#;

/// A pool on a block device grows with the device.
const DEVICE: &str = r#"
    truncate -s 100M "$PLACE/image"; loop=$(losetup -f --show "$PLACE/image")
    mounted=$PLACE/device-mount; mkdir "$mounted"; trap 'losetup -d $loop' EXIT
    "$WARREN" mkfs $loop; "$WARREN" mount $loop "$mounted"; echo old > "$mounted/old"
    rc=0; said=$("$WARREN" grow $loop 200M 2>&1) || rc=$?
    test $rc = 1 && grep -q 'make the device larger first' <<< "$said" || { echo "$rc: $said"; exit 52; }
    truncate -s 300M "$PLACE/image"; losetup -c $loop
    "$WARREN" grow $loop; test $(stat -f -c %b "$mounted") -gt 65000 || { echo "no room"; exit 53; }
    head -c 200M /dev/zero > "$mounted/large"; sync "$mounted/large"
    "$WARREN" stop $loop
    truncate -s 400M "$PLACE/image"; losetup -c $loop
    "$WARREN" fsck -n $loop | grep 'bytes behind its pool' > /dev/null
    "$WARREN" grow $loop 400M; "$WARREN" fsck -n $loop
"#;

pub(super) fn run(ground: &Ground, cells: u16, tally: &mut Tally) {
    if !ground.options.wants("grow") {
        return;
    }
    tally.case(&format!("grow ({cells} cells)"), || served_and_not(ground, cells));
    for (what, script) in [("on a full host", NO_ROOM), ("on a device", DEVICE)] {
        tally.case(&format!("grow {what} ({cells} cells)"), || {
            let place = place(ground, what, cells)?;
            bash(ground, &ground.path("run"), (&place, &place), script)?;
            Ok(Verdict::Passed)
        });
    }
}

/// A directory for what the scripts note.
fn place(ground: &Ground, what: &str, cells: u16) -> Result<std::path::PathBuf> {
    let place = ground.path(&format!("grow-{}-{cells}", what.replace(' ', "-")));
    std::fs::create_dir_all(&place)?;
    Ok(place)
}

fn bash(
    ground: &Ground,
    directory: &Path,
    (pool, place): (&Path, &Path),
    script: &str,
) -> Result<()> {
    let mut command: Command = preloaded::program(ground, "bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory).env("LC_ALL", "C");
    command.env("WARREN", &ground.warren).env("POOL", pool).env("PLACE", place);
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    let said = outcome.stdout.clone();
    outcome.expect_success("a script").map(drop).map_err(|error| error.context(said))
}

fn served_and_not(ground: &Ground, cells: u16) -> Result<Verdict> {
    let name = format!("grow-{cells}");
    let place = place(ground, "served", cells)?;
    let fleet = Fleet::start(ground, &name, "64M", cells)?;
    let pool = fleet.pool.clone();
    let files = (&*pool, &*place);
    fleet.during(|fleet| {
        for script in [SERVED, LOOK, REFUSED, BEHIND] {
            bash(ground, &fleet.mounted, files, script)?;
        }
        Ok(Verdict::Passed)
    })?;
    let grow = |size: &str| -> Result<()> {
        warren(ground, &["grow", &pool.to_string_lossy(), size])?.expect_success(size)?;
        let checked = warren(ground, &["fsck", "-n", &pool.to_string_lossy()])?;
        ensure!(checked.code() == 0, "fsck of {size}: exit {}: {}", checked.code(), checked.stdout);
        Ok(())
    };
    bash(ground, &ground.path("run"), files, &REFUSED.replace("1200M", "1210M"))?;
    grow("1300M")?;
    // A fleet of another size is killed, so that the pool has logs that count when it grows.
    let mut fleet = Fleet::resume(ground, &name, cells % 3 + 1)?;
    bash(ground, &fleet.mounted, files, LOOK)?;
    bash(ground, &fleet.mounted, files, "echo new > new; sync new")?;
    fleet.kill_keeper()?;
    fleet.kill();
    grow("2200M")?;
    let fleet = Fleet::resume(ground, &name, cells)?;
    fleet.during(|fleet| {
        let look = format!("{LOOK} test $(cat new) = new; test $(stat -f -c %b .) -gt 540000");
        bash(ground, &fleet.mounted, files, &look)?;
        Ok(Verdict::Passed)
    })
}
