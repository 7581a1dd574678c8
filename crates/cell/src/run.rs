//! Tasks: their work, what they wait for, and which runs next.

pub(crate) mod answer;
pub(crate) mod ascent;
pub(crate) mod state;
pub(crate) mod task;
pub(crate) mod txn;
pub(crate) mod wait;
pub(crate) mod work;
