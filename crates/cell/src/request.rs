//! Classes of requests.

use warren_proto::{AccessMode, CreateFlags, Position, Request};

/// Whether the request may need room in the log: also where it changes nothing but the session, which
/// nothing else bounds. What has to go on though the log is full, for others to go on, needs none.
pub(crate) const fn may_log(request: &Request) -> bool {
    !matches!(
        request,
        Request::Null
            | Request::GetAttr { .. }
            | Request::ReadLink { .. }
            | Request::Read { position: Position::At(_) | Position::End, .. }
            | Request::Fsync { .. }
            | Request::Sync
            | Request::StatFs
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::TestLock { .. }
            | Request::Cancel { .. }
            | Request::AwaitRecall { .. }
            | Request::Lookup { .. }
            | Request::ReadDir { .. }
    )
}

/// Whether the request asks for a change, whatever it finds. Of a `Create` that may open what is there that is
/// not known before.
pub(crate) fn is_change(request: &Request) -> bool {
    match request {
        Request::SetAttr { .. }
        | Request::Write { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. } => true,
        Request::Open { access, .. } => access.intersects(AccessMode::WRITE | AccessMode::TRUNCATE),
        Request::Create { flags, access, .. } => {
            let may_only_open = flags.contains(CreateFlags::OPEN)
                && !flags.contains(CreateFlags::EXCLUSIVE)
                && !access.intersects(AccessMode::WRITE | AccessMode::TRUNCATE);
            !may_only_open
        }
        _ => false,
    }
}
