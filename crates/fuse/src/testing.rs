//! A kernel for tests: messages go in by hand, replies and notices are kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warren_base::Errno;

use crate::abi;
use crate::channel::{Channel, Received};
use crate::message::{HEAD, Head};

pub type Replied = Result<Vec<u8>, Errno>;

#[derive(Default)]
struct State {
    requests: VecDeque<Vec<u8>>,
    replies: BTreeMap<u64, Replied>,
    notices: Vec<(i32, Vec<u8>)>,
    knows_no_inode: bool,
    closed: bool,
}

#[derive(Default)]
pub struct FakeChannel {
    state: Mutex<State>,
    changed: Condvar,
}

/// The bytes of a message.
pub fn message(opcode: u32, unique: u64, ino: u64, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&((abi::IN_HEADER + body.len()) as u32).to_ne_bytes());
    bytes.extend_from_slice(&opcode.to_ne_bytes());
    bytes.extend_from_slice(&unique.to_ne_bytes());
    bytes.extend_from_slice(&ino.to_ne_bytes());
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(&body);
    bytes
}

impl FakeChannel {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn send(&self, bytes: Vec<u8>) {
        self.lock().requests.push_back(bytes);
        self.changed.notify_all();
    }

    pub fn notices(&self) -> Vec<(i32, Vec<u8>)> {
        self.lock().notices.clone()
    }

    pub fn know_no_inode(&self) {
        self.lock().knows_no_inode = true;
    }

    pub fn has_reply(&self, unique: u64) -> bool {
        self.lock().replies.contains_key(&unique)
    }

    /// The reply to `unique`, within a second.
    pub fn reply_to(&self, unique: u64) -> Replied {
        let state = self.lock();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, Duration::from_secs(1), |state| {
                !state.replies.contains_key(&unique)
            })
            .unwrap_or_else(PoisonError::into_inner);
        state.replies.remove(&unique).expect("a request was not answered")
    }
}

impl Channel for FakeChannel {
    fn read(&self, head: &mut Head, payload: &mut [u8]) -> Received {
        let mut state = self.lock();
        let Some(bytes) = state.requests.pop_front() else {
            return if state.closed { Received::Closed } else { Received::Nothing };
        };
        let in_head = bytes.len().min(HEAD);
        head[..in_head].copy_from_slice(&bytes[..in_head]);
        payload[..bytes.len() - in_head].copy_from_slice(&bytes[in_head..]);
        Received::Message(bytes.len())
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        let state = self.lock();
        let ready = |state: &State| !state.requests.is_empty() || state.closed;
        if timeout == Some(Duration::ZERO) {
            return ready(&state);
        }
        drop(self.changed.wait_while(state, |state| !ready(state)));
        true
    }

    fn reply(&self, unique: u64, answer: Result<&[u8], Errno>) {
        self.lock().replies.insert(unique, answer.map(<[u8]>::to_vec));
        self.changed.notify_all();
    }

    fn notify(&self, code: i32, body: &[u8]) -> Result<(), Errno> {
        let mut state = self.lock();
        state.notices.push((code, body.to_vec()));
        let inode = code == abi::NOTIFY_INVAL_INODE;
        if inode && state.knows_no_inode { Err(Errno::ENOENT) } else { Ok(()) }
    }

    fn stop(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}
