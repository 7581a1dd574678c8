//! The faults of the device, of the processes and of the FUSE front, in the order of the crates.

use super::table::Mutant;

const DEVICE: &str = "test -p warren-device --lib";
const FUSE: &str = "test -p warren-fuse --features warren-runtime/plants --lib";
const PROTO: &str = "test -p warren-proto";
const RUNTIME: &str = "test -p warren-runtime --features plants --lib";

pub(super) const DRIVER_MUTANTS: &[Mutant] = &[
    Mutant {
        file: "crates/device/src/transfer.rs",
        what: "a short transfer goes on in the middle of a block",
        find: "let whole = bytes / BLOCK_SIZE * BLOCK_SIZE;",
        replace: "let whole = bytes;",
        found_by: DEVICE,
        is_proven: true,
    },
    Mutant {
        file: "crates/device/src/transfer.rs",
        what: "a read that finds nothing is tried for ever",
        find: "if bytes == 0 && self.action == Action::Read {",
        replace: "if bytes == 0 && self.action == Action::Flush {",
        found_by: DEVICE,
        is_proven: true,
    },
    Mutant {
        file: "crates/device/src/transfer.rs",
        what: "a durable write that failed does not count as a failed flush",
        find: "Action::WriteDurable => result.is_err(),",
        replace: "Action::WriteDurable => false,",
        found_by: DEVICE,
        is_proven: true,
    },
    Mutant {
        file: "crates/runtime/src/cell/peers.rs",
        what: "a message of an earlier epoch is taken",
        find: "        if epoch < peer.epoch {\n",
        replace: "        if false {\n",
        found_by: RUNTIME,
        is_proven: true,
    },
    Mutant {
        file: "crates/runtime/src/cell/peers.rs",
        what: "a message without a capability is taken",
        find: "if self.inbox.present(capability).is_err() {",
        replace: "if self.inbox.present(capability).is_err() && false {",
        found_by: RUNTIME,
        is_proven: true,
    },
    Mutant {
        file: "crates/runtime/src/cell/peers.rs",
        what: "what waits for room is overtaken",
        find: "        if waiting.is_empty() {\n            match",
        replace: "        {\n            match",
        found_by: RUNTIME,
        is_proven: true,
    },
    Mutant {
        file: "crates/runtime/src/cell/intake.rs",
        what: "under pressure requests of all clients pass",
        find: "own < least || may_take(uid, own, live, TASKS_MAX)",
        replace: "own < usize::MAX || least > 0 || may_take(uid, own, live, TASKS_MAX)",
        found_by: RUNTIME,
        is_proven: true,
    },
    Mutant {
        file: "crates/proto/src/class.rs",
        what: "an unlock waits like any other request",
        find: "Self::Lock { spec, .. } => matches!(spec.lock, LockType::Unlock),",
        replace: "Self::Lock { spec, .. } => !matches!(spec.lock, LockType::Unlock),",
        found_by: PROTO,
        is_proven: true,
    },
    Mutant {
        file: "crates/fuse/src/front_state.rs",
        what: "a step is taken twice by a front's successor",
        find: "if self.unique() != unique & !abi::UNIQUE_RESEND {",
        replace: "if self.unique() != unique {",
        found_by: FUSE,
        is_proven: true,
    },
    Mutant {
        file: "crates/fuse/src/front_state.rs",
        what: "an answer that says that nothing was done counts as a step",
        find: "if !matches!(answer, Err(Errno::EAGAIN) | Ok(Reply::Moved(_))) {",
        replace: "if !matches!(answer, Ok(Reply::Moved(_))) {",
        found_by: FUSE,
        is_proven: true,
    },
    Mutant {
        file: "crates/fuse/src/lock_owners.rs",
        what: "a close releases another owner's locks too",
        find: "self.remove(ino, |it| it.owner == owner)",
        replace: "self.remove(ino, |it| it.owner >= owner)",
        found_by: FUSE,
        is_proven: true,
    },
    Mutant {
        file: "crates/fuse/src/recall.rs",
        what: "names that are recalled stay in the kernel",
        find: "locking.push(notice(*dir, name));",
        replace: "let _ = notice(*dir, name);",
        found_by: FUSE,
        is_proven: true,
    },
    Mutant {
        file: "crates/fuse/src/interrupt.rs",
        what: "an interrupt that comes before its request is lost",
        find: "                table.early.push_back(unique);\n",
        replace: "                table.early.clear();\n",
        found_by: FUSE,
        is_proven: true,
    },
    Mutant {
        file: "crates/device/src/pool_file.rs",
        what: "a successor does not wait for what its predecessor writes",
        find: "        writers_lock(self.as_fd(), libc::F_WRLCK, i64::from(number), 1)\n",
        replace: "        self.try_lock_as_writer(number).map(|_| ()).or(Ok::<_, Errno>(()))\n",
        found_by: "test -p warren-device --test dead_writer",
        is_proven: true,
    },
    Mutant {
        file: "crates/supervisor/src/supervisor.rs",
        what: "a verdict counts as a proof of death",
        find: "turn.push(Effect::Kill { cell, epoch, verdict });",
        replace: "turn.push(Effect::Kill { cell, epoch, verdict }); self.exited(process, false, turn);",
        found_by: "test -p warren-sim --test seeds seeds_pass",
        is_proven: true,
    },
];
