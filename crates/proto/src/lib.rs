//! Requests, replies, slot and record layouts
