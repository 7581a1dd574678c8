//! What a dead front left unanswered, read again before anything else.
//!
//! The kernel puts such requests before all others, in their order. They are read to the last by one thread
//! before others read, so that it is known of each whether it will come: what the ledger says of a
//! request that did not come was answered, or nobody waits for it any more. (Without a dead front
//! nothing comes that is sent again, and at most one request is read ahead.)

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warren_base::Errno;
use warren_base::limits::PAYLOAD_MAX;

use crate::abi::{self, opcode};
use crate::channel::{Channel, Received, make_resident};
use crate::message::{HEAD, Head, Header};

/// A message that was read and is still to be served.
pub struct Message {
    head: Head,
    len: usize,
    payload: Box<[u8]>,
}

impl Message {
    /// As if it were read now.
    pub fn put(&self, head: &mut Head, payload: &mut [u8]) -> usize {
        *head = self.head;
        let len = self.payload.len().min(payload.len());
        payload[..len].copy_from_slice(&self.payload[..len]);
        self.len
    }

    pub fn header(&self) -> Option<Header> {
        Header::decode(&self.head, self.len)
    }
}

/// Has the kernel send again what was not answered, and reads it, and perhaps a little more.
pub fn collect(channel: &dyn Channel) -> Vec<Message> {
    // A kernel that cannot do it (EINVAL) keeps the requests; there are none at a mount's beginning.
    let _ = channel.notify(abi::NOTIFY_RESEND, &[]);
    let mut head = [0; HEAD];
    let mut payload = vec![0; PAYLOAD_MAX];
    make_resident(&mut payload);
    let mut messages = Vec::new();
    while let Received::Message(len) = channel.read(&mut head, &mut payload) {
        let beyond = len.saturating_sub(HEAD).min(PAYLOAD_MAX);
        let message = Message { head, len, payload: payload[..beyond].into() };
        let is_last = message.header().is_some_and(|header| {
            // These two overtake requests.
            let overtakes =
                matches!(header.opcode, opcode::INTERRUPT | opcode::FORGET | opcode::BATCH_FORGET);
            header.unique & abi::UNIQUE_RESEND == 0 && !overtakes
        });
        messages.push(message);
        if is_last {
            break;
        }
    }
    messages
}

/// A channel of which some messages have been read already.
pub struct Ahead {
    channel: Arc<dyn Channel>,
    messages: Mutex<VecDeque<Message>>,
    is_empty: AtomicBool,
}

impl Ahead {
    pub fn new(channel: Arc<dyn Channel>, messages: Vec<Message>) -> Self {
        let is_empty = AtomicBool::new(messages.is_empty());
        Self { channel, messages: Mutex::new(messages.into()), is_empty }
    }

    fn take(&self) -> Option<Message> {
        if self.is_empty.load(Ordering::Acquire) {
            return None;
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.pop_front();
        self.is_empty.store(messages.is_empty(), Ordering::Release);
        message
    }
}

impl Channel for Ahead {
    fn read(&self, head: &mut Head, payload: &mut [u8]) -> Received {
        match self.take() {
            Some(message) => Received::Message(message.put(head, payload)),
            None => self.channel.read(head, payload),
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        !self.is_empty.load(Ordering::Acquire) || self.channel.wait(timeout)
    }

    fn reply(&self, unique: u64, answer: Result<&[u8], Errno>) {
        self.channel.reply(unique, answer);
    }

    fn notify(&self, code: i32, body: &[u8]) -> Result<(), Errno> {
        self.channel.notify(code, body)
    }

    fn stop(&self) {
        self.channel.stop();
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        self.channel.device()
    }
}
