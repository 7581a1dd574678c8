//! The state that a program shares with the case that runs it.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

/// The state that a program shares with the case.
#[derive(Default)]
pub(in crate::e2e) struct Watch {
    pub is_over: AtomicBool,
    /// Whether the device has failed since the fleet was started, or the fleet is being ended. Then
    /// changes may fail.
    pub may_fail: AtomicBool,
    /// Whether any read may fail.
    pub reads_may_fail: AtomicBool,
    under_way: Mutex<Option<String>>,
}

impl Watch {
    /// The call that is under way.
    pub(super) fn call(&self) -> Option<String> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, call: Option<String>) {
        *self.under_way.lock().unwrap_or_else(PoisonError::into_inner) = call;
    }
}
