//! Names under which programs pass on files that they have open without the kernel ([`Handover`]).
//!
//! A look-up of such a name in any directory gives the file of a program that proves that it has it
//! open. The kernel does not keep the entry for a later look-up, and a failure neither: a program
//! may have the file open later.
//!
//! The kernel then checks the mode, as for each open, but descriptors keep rights that their file
//! has lost: see [`shown_rights`].

use std::time::Duration;

use warren_base::Errno;
use warren_proto::{FileName, Handover, typed};

use super::{Call, Served};
use crate::reply::NewEntry;
use crate::shown_rights::{self, SHOWN_FOR};

impl Call<'_> {
    /// A look-up of a reserved name.
    pub(super) fn take_over(&mut self, name: &FileName) -> Served {
        let handover = Handover::parse(name.as_bytes()).ok_or(Errno::ENOENT)?;
        let Handover { client, ino, capability } = handover;
        let attr = match self.call(typed::Claim { client, ino, capability }) {
            Ok(attr) if attr.ino == ino => attr,
            Ok(_) => return Err(Errno::EIO),
            // After ESTALE the kernel would look the name up again.
            Err(Errno::ESTALE) => return Err(Errno::ENOENT),
            Err(errno) => return Err(errno),
        };
        let shown = shown_rights::of_owner(&attr, self.header.uid);
        if shown.is_some() {
            self.front.shown_rights.add(ino);
        }
        let attr_valid = if shown.is_some() { SHOWN_FOR } else { Duration::ZERO };
        let attr = shown.unwrap_or(attr);
        self.body.entry(&NewEntry { attr, name_valid: Duration::ZERO, attr_valid });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
