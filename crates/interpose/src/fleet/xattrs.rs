//! Extended attributes of open files, and of files by their paths. All of this is slow.

use alloc::boxed::Box;
use alloc::vec::Vec;

use warren_base::Ino;
use warren_client::{Call, Op, PathOp};
use warren_proto::{Answer, Capabilities, InodeRef, Reply, Request, XattrMode, XattrName};

use super::client::{Client, Found, Slow, hot};
use super::names::failed;
use super::place::Place;

/// The file that has the attributes.
#[derive(Clone, Copy)]
pub(crate) enum Bearer<'a> {
    Open(InodeRef),
    At(Place<'a>),
}

impl Bearer<'_> {
    /// Also returns whether the file was reached. `None` without a client. A change of a list may
    /// be posted.
    fn ask(
        self,
        client: &mut Client,
        request: impl FnOnce(Ino) -> Request,
        op: impl FnOnce() -> PathOp,
    ) -> Option<(Answer, bool)> {
        let slow = client.slow()?;
        match self {
            Self::Open(node) => {
                let op = Op::Ino(request(node.ino), Capabilities::of(node.capability));
                let mut call = Call::new(op, slow.caller.clone());
                let Slow { slot, cache, posts, .. } = slow;
                Some((slot.perform_or_post(&mut call, cache, posts).answer, true))
            }
            Self::At(place) => {
                let mut call = slow.call(hot()?, place, op());
                let Slow { slot, cache, posts, .. } = slow;
                let answer = slot.perform_or_post(&mut call, cache, posts).answer;
                Some((answer, call.is_sent()))
            }
        }
    }
}

/// The names, each with a zero behind it.
pub(crate) fn list(client: &mut Client, of: Bearer<'_>) -> Found<Vec<u8>> {
    match of.ask(client, |ino| Request::ListXattr { ino }, || PathOp::ListXattr) {
        Some((Ok(Reply::XattrNames(names)), _)) => {
            Found::Is(names.iter().flat_map(|name| name.iter().copied().chain([0])).collect())
        }
        Some((Err(errno), is_sent)) => failed(errno, is_sent),
        _ => Found::Kernel,
    }
}

/// The value of an attribute.
pub(crate) fn get(client: &mut Client, of: Bearer<'_>, name: &[u8]) -> Found<Box<[u8]>> {
    let Ok(name) = XattrName::new(name) else { return Found::Kernel };
    let request = |ino| Request::GetXattr { ino, name: name.clone() };
    match of.ask(client, request, || PathOp::GetXattr(name.clone())) {
        Some((Ok(Reply::Xattr(value)), _)) => Found::Is(value),
        Some((Err(errno), is_sent)) => failed(errno, is_sent),
        _ => Found::Kernel,
    }
}

/// Sets an attribute to the new value, or removes it if there is none.
pub(crate) fn change(
    client: &mut Client,
    of: Bearer<'_>,
    name: &[u8],
    new: Option<(&[u8], XattrMode)>,
) -> Found<()> {
    let Ok(name) = XattrName::new(name) else { return Found::Kernel };
    let name = || name.clone();
    let answered = match new {
        Some((value, mode)) => of.ask(
            client,
            |ino| Request::SetXattr {
                ino,
                name: name(),
                value: value.into(),
                mode,
                kill_set_gid: false,
            },
            || PathOp::SetXattr { name: name(), value: value.into(), mode },
        ),
        None => {
            let request = |ino| Request::RemoveXattr { ino, name: name() };
            of.ask(client, request, || PathOp::RemoveXattr(name()))
        }
    };
    match answered {
        Some((Ok(_), _)) => Found::Is(()),
        Some((Err(errno), is_sent)) => failed(errno, is_sent),
        None => Found::Kernel,
    }
}
