//! Shared-memory segments, slots, doorbells and parking
