use std::sync::{Arc, Mutex};

use warren_base::{ClientId, Ino, ShardId};
use warren_proto::{Answer, Attr, Capability, FileKind, HANDOVER_NAME_MAX, Reply, Request};

use super::*;
use crate::abi::opcode;
use crate::connection::{FleetConnection, FleetSlot};
use crate::front::tests::attr;
use crate::front::{Front, FrontOptions, Outcome};
use crate::front_state::FrontState;
use crate::message::{Header, Operation};
use crate::reply::Body;
use crate::testing::ScriptedFleet;

const FILE: Ino = Ino::new(ShardId(3), 9);
const CLIENT: ClientId = ClientId(5);

const HEADER: Header =
    Header { len: 0, opcode: opcode::LOOKUP, unique: 2, ino: Ino::ROOT, uid: 7, gid: 7, thread: 7 };

/// A front whose cells admit one claim, and the requests that they get.
struct Mount {
    front: Front,
    slot: Box<dyn FleetSlot>,
    body: Body,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Mount {
    fn new(answer: Answer) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&asked);
        let fleet = Arc::new(ScriptedFleet::new(1, move |_, request| {
            requests.lock().unwrap().push(request.clone());
            answer.clone()
        }));
        let slot = fleet.slot().unwrap();
        let state = Arc::new(FrontState::create().unwrap());
        let front = Front::new(Arc::clone(&fleet) as Arc<_>, state, FrontOptions::default(), 1);
        Self { front, slot, body: Body::default(), asked }
    }

    fn look_up(&mut self, name: &[u8]) -> Result<Outcome, Errno> {
        self.body.clear();
        let lookup = Operation::Lookup(FileName::new(name).unwrap());
        self.front.serve(&mut *self.slot, &mut self.body, HEADER, lookup)
    }

    /// The mode in the entry: `mode` of its `fuse_attr`.
    fn mode(&self) -> u32 {
        u32::from_ne_bytes(self.body.as_bytes()[40 + 60..][..4].try_into().unwrap())
    }

    /// The node number of the entry.
    fn node(&self) -> u64 {
        u64::from_ne_bytes(self.body.as_bytes()[..8].try_into().unwrap())
    }

    fn is_asked(&self) -> bool {
        !self.asked.lock().unwrap().is_empty()
    }
}

fn file() -> (Handover, Request, Attr) {
    let (client, ino, capability) = (CLIENT, FILE, Capability(0x1234));
    let attr = Attr { nlink: 0, ..attr(ino) };
    (Handover { client, ino, capability }, Request::Claim { client, ino, capability }, attr)
}

/// Both validities of an entry.
fn are_zero(mount: &Mount) -> bool {
    mount.body.as_bytes()[16..40].iter().all(|byte| *byte == 0)
}

#[test]
fn a_file_that_a_program_has_open_is_claimed_at_its_cell() {
    let (handover, claim, attr) = file();
    let mut mount = Mount::new(Ok(Reply::Attr { attr, lease: None }));
    let mut name = [0; HANDOVER_NAME_MAX];
    assert_eq!(mount.look_up(handover.name(&mut name)), Ok(Outcome::BODY));
    assert_eq!(*mount.asked.lock().unwrap(), [claim]);
    assert_eq!(mount.node(), FILE.0);
    assert!(are_zero(&mount), "the kernel must not cache it");
}

#[test]
fn the_owner_is_shown_the_rights_to_open_his_file_until_he_does() {
    let (handover, _, attr) = file();
    let mut name = [0; HANDOVER_NAME_MAX];
    let name = handover.name(&mut name);
    // The caller is user 7.
    for (uid, mode, shown) in
        [(7, 0, 0o600), (7, 0o444, 0o644), (7, 0o600, 0o600), (8, 0o060, 0o060)]
    {
        let kind = FileKind::Regular;
        let attr = Attr { uid, mode, kind, ..attr };
        let mut mount = Mount::new(Ok(Reply::Attr { attr, lease: None }));
        assert_eq!(mount.look_up(name), Ok(Outcome::BODY));
        assert_eq!(mount.mode() & 0o7777, u32::from(shown));
        assert_eq!(are_zero(&mount), mode == shown);
        let open = Header { opcode: opcode::OPEN, ino: FILE, ..HEADER };
        let elsewhere = Header { ino: Ino::ROOT, ..open };
        let other = Header { opcode: opcode::GETATTR, ..open };
        assert!(
            !mount.front.take_shown_rights(&elsewhere) && !mount.front.take_shown_rights(&other)
        );
        assert_eq!(mount.front.take_shown_rights(&open), mode != shown);
        assert!(!mount.front.take_shown_rights(&open), "once");
    }
}

#[test]
fn a_claim_that_is_refused_leads_nowhere() {
    let (handover, _, attr) = file();
    let other = Attr { ino: Ino::ROOT, ..attr };
    let cases = [
        (Err(Errno::ENOENT), Errno::ENOENT),
        (Err(Errno::ESTALE), Errno::ENOENT),
        (Err(Errno::EIO), Errno::EIO),
        (Ok(Reply::Attr { attr: other, lease: None }), Errno::EIO),
    ];
    for (answer, expected) in cases {
        let mut mount = Mount::new(answer);
        let mut name = [0; HANDOVER_NAME_MAX];
        assert_eq!(mount.look_up(handover.name(&mut name)), Err(expected));
        assert_eq!(mount.body.len(), 0, "the kernel must not cache that there is none");
    }
}

#[test]
fn other_reserved_names_do_not_exist() {
    let mut mount = Mount::new(Err(Errno::EIO));
    for name in [&b".warren-handover\x01"[..], b".warren-handover\x01anything"] {
        assert_eq!(mount.look_up(name), Err(Errno::ENOENT));
    }
    assert!(!mount.is_asked());
    assert_eq!(mount.look_up(b".warren-handover"), Err(Errno::EIO));
    assert!(mount.is_asked());
}
