//! Requests that a dead front did not answer: the kernel sends them again.
//!
//! The kernel puts these requests before all others, in their order. One thread reads all of them
//! before any worker reads. After that it is known of each slot's record whether its request comes:
//! a request that did not come was answered, or its caller is gone. Without a dead front the kernel
//! sends nothing again, and at most one new request is read early.

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

/// A message that was read and is not yet served.
pub(crate) struct BufferedMessage {
    head: Head,
    len: usize,
    payload: Box<[u8]>,
}

impl BufferedMessage {
    /// Copies the message to where a read would put it. Returns its length.
    pub(crate) fn copy_to(&self, head: &mut Head, payload: &mut [u8]) -> usize {
        *head = self.head;
        let len = self.payload.len().min(payload.len());
        payload[..len].copy_from_slice(&self.payload[..len]);
        self.len
    }

    pub(crate) fn header(&self) -> Option<Header> {
        Header::decode(&self.head, self.len)
    }
}

/// Has the kernel send all unanswered requests again, and reads them. The last message returned may
/// be a new request.
pub(crate) fn read_resent(channel: &dyn Channel) -> Vec<BufferedMessage> {
    // EINVAL from a kernel that cannot resend. Such a mount has no second front, so that there are
    // no unanswered requests.
    let _ = channel.notify(abi::NOTIFY_RESEND, &[]);
    let mut head = [0; HEAD];
    let mut payload = vec![0; PAYLOAD_MAX];
    make_resident(&mut payload);
    let mut messages = Vec::new();
    while let Received::Message(len) = channel.read(&mut head, &mut payload) {
        let beyond = len.saturating_sub(HEAD).min(PAYLOAD_MAX);
        let message = BufferedMessage { head, len, payload: payload[..beyond].into() };
        let is_last = message.header().is_some_and(|header| {
            // The kernel sends these before requests.
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

/// A channel of which some messages were read early: they are received first.
pub(crate) struct BufferedChannel {
    channel: Arc<dyn Channel>,
    messages: Mutex<VecDeque<BufferedMessage>>,
    is_empty: AtomicBool,
}

impl BufferedChannel {
    pub(crate) fn new(channel: Arc<dyn Channel>, messages: Vec<BufferedMessage>) -> Self {
        let is_empty = AtomicBool::new(messages.is_empty());
        Self { channel, messages: Mutex::new(messages.into()), is_empty }
    }

    fn take(&self) -> Option<BufferedMessage> {
        if self.is_empty.load(Ordering::Acquire) {
            return None;
        }
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let message = messages.pop_front();
        self.is_empty.store(messages.is_empty(), Ordering::Release);
        message
    }
}

impl Channel for BufferedChannel {
    fn read(&self, head: &mut Head, payload: &mut [u8]) -> Received {
        match self.take() {
            Some(message) => Received::Message(message.copy_to(head, payload)),
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
