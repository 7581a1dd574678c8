//! The server: a deterministic state machine, event in, effect out
