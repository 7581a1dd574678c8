//! A cell that is broken for good: the others go on, and nothing is lost.
//!
//! Each process of the cell is ended by a signal as of a crash, until the fleet takes the cell out.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::e2e::harness::fleet::Fleet;
use crate::e2e::harness::ground::{Ground, Tally, Verdict};
use crate::e2e::harness::preloaded;
use crate::e2e::harness::process;

const LIMIT: Duration = Duration::from_secs(180);

/// All cells of the fleet. The last one breaks: the root directory lies on the first.
const CELLS: u16 = 4;

/// 1,064 files, that many as one attack on an earlier version cost.
const MAKE: &str = "
    for d in $(seq 56); do
      mkdir $d; for i in $(seq 19); do echo $d/$i > $d/$i; done
    done
    sync */*; for d in $(seq 56); do echo late $d > $d/late; done
";

const BREAK: &str = r#"
    field() { "$WARREN" status --json "$POOL" | python3 -c "import json, sys; s = json.load(sys.stdin)['fleets'][0]; print($1)"; }
    last=
    for i in $(seq 2000); do
      test "$(field 's["taken_out"]')" = '[]' || break
      pid=$(field 's["cells"][3]["pid"]')
      test "$pid" = "$last" || kill -ABRT $pid 2> /dev/null || true
      last=$pid; sleep 0.01
    done
    until test "$(field '[(out["cell"], s["cells"][3]["state"]) for out in s["taken_out"]]')" = "[(3, 'ready')]"; do sleep 0.01; done
    "$WARREN" status "$POOL" | grep 'CELL 3 TAKEN OUT since' > /dev/null
"#;

/// A file is right, or refused because it lies on the cell.
const BESIDE: &str = r#"
    right=0 refused=0
    for d in $(seq 56); do for i in $(seq 19); do
      if said=$(cat $d/$i 2>&1); then
        test "$said" = $d/$i || { echo "$d/$i holds $said"; exit 40; }
        right=$((right + 1))
      else
        case $said in *Input/output*) refused=$((refused + 1));; *) echo "$said"; exit 41;; esac
      fi
    done; done
    # With more than a thousandth of a thousandth each lies within these bounds.
    test $right -ge 400 -a $refused -ge 19 || { echo "$right right, $refused refused"; exit 42; }
    for i in $(seq 24); do
      mkdir new$i; for f in a b c; do echo $i$f > new$i/$f; done; sync new$i/a; mv new$i/b new$i/d
    done
    test "$(cat new*/? | wc -l)" = 72; sync new*/*
    for i in $(seq 24); do rm new$i/c; done
    code() { rc=0; said=$("${@:2}" 2>&1) || rc=$?; test $rc = $1 || { echo "${@:2}: $rc: $said"; exit 43; }; }
    "$WARREN" debug depends --json $(for d in $(seq 56); do echo $d/{1,9,19}; done) | python3 -c '
import json, sys
refused = 0
for it in json.load(sys.stdin)["paths"]:
    try:
        open(it["path"]).read()
        is_refused = False
    except OSError:
        is_refused = True
    needs_it = any(cell["state"] == "taken out" for cell in it["cells"])
    assert is_refused == needs_it and 1 <= len(it["cells"]) <= 3 and it["of"] == 4, it
    refused += is_refused
assert refused > 0'
    "$WARREN" debug depends . | grep ': 1 of 4 cells, and the mount ' > /dev/null
    code 7 "$WARREN" debug depends none; code 1 "$WARREN" debug depends /
    code 9 "$WARREN" stop "$POOL"; grep -q 'warren rejoin' <<< "$said"
    code 1 "$WARREN" rejoin "$POOL" 2; code 1 "$WARREN" rejoin "$POOL" 9; code 2 "$WARREN" rejoin "$POOL" x
    code 5 setpriv --reuid 54321 --clear-groups "$WARREN" rejoin "$POOL" 3
"#;

const SYNCED: &str = r#"
    for d in $(seq 56); do for i in $(seq 19); do
      test "$(cat $d/$i)" = $d/$i || { echo "$d/$i is lost"; exit 44; }
    done; done
    test "$(cat new*/? | wc -l)" = 48
    for i in $(seq 24); do test "$(cat new$i/a new$i/d)" = "${i}a
${i}b"; done
"#;

/// The commands that sync while the cell is out.
const BESIDE_AGAIN: &str = r#"
    for i in $(seq 12); do
      mkdir more$i; for f in a b; do echo $i > more$i/$f; sync more$i/$f more$i; done
    done
"#;

const SYNCED_AGAIN: &str =
    r#"test "$(cat more*/?)" = "$(ls -d more* | sed 's/more\(.*\)/\1\n\1/')""#;

const LATE: &str = r#"for d in $(seq 56); do test "$(cat $d/late)" = "late $d"; done; "#;

pub(super) fn run(ground: &Ground, tally: &mut Tally) {
    if ground.options.wants("taken_out") {
        tally.case("taken_out (4 cells)", || taken_out(ground));
    }
}

fn taken_out(ground: &Ground) -> Result<Verdict> {
    let mut fleet = Fleet::start(ground, "taken-out", "1G", CELLS)?;
    let work = |fleet: &Fleet, script: &str| bash(ground, &fleet.mounted, &fleet.pool, script);
    work(&fleet, MAKE)?;
    work(&fleet, BREAK)?;
    work(&fleet, BESIDE)?;
    fleet.warren(&["rejoin"], &[&fleet.pool, Path::new("3")])?.expect_success("rejoin")?;
    // What was not synced is there too, because the frames were kept.
    work(&fleet, &format!("{SYNCED}{LATE}sync */late"))?;
    work(&fleet, BREAK)?;
    work(
        &fleet,
        "test $(ls | wc -l) = 80; for i in $(seq 24); do touch new$i 2> /dev/null || true; done",
    )?;
    let stopped = fleet.warren(&["stop", "--discard"], &[&fleet.pool])?;
    stopped.expect_success("stop --discard")?;
    ensure!(process::holds_within(LIMIT, || Ok(fleet.is_gone()))?, "the fleet is not gone");
    fleet.kill();
    let mut fleet = Fleet::resume(ground, "taken-out", CELLS)?;
    work(&fleet, &format!("{SYNCED}{LATE}"))?;
    work(&fleet, BREAK)?;
    work(&fleet, BESIDE_AGAIN)?;
    // All processes end at once, with what was not synced.
    fleet.kill_keeper()?;
    fleet.kill();
    Fleet::resume(ground, "taken-out", CELLS)?.during(|fleet| {
        let look = format!("{SYNCED}{LATE}{SYNCED_AGAIN} || {{ echo 'more is lost'; exit 45; }}");
        work(fleet, &look)?;
        Ok(Verdict::Passed)
    })
}

fn bash(ground: &Ground, directory: &Path, pool: &Path, script: &str) -> Result<()> {
    let mut command: Command = preloaded::program(ground, "bash");
    command.args(["-euo", "pipefail", "-c", script]).current_dir(directory).env("LC_ALL", "C");
    command.env("WARREN", &ground.warren).env("POOL", pool);
    let outcome = process::run(command, &ground.path("run"), LIMIT)?;
    let said = outcome.stdout.clone();
    outcome.expect_success("a script").map(drop).map_err(|error| error.context(said))
}
