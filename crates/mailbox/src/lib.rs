//! Mailboxes with names and capabilities, dispatch order
