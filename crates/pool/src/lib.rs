//! The distributed unordered pool
