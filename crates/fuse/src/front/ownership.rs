//! Changes that only the owner of an inode may make, for callers that are not its owner.
//!
//! Linux checks this with the owner that its inode shows (`inode_owner_or_capable`), without asking
//! for attributes first, so that a former owner passes. A cell therefore checks the owner again,
//! and refuses all others but root. Here the front sees whether the caller has a capability for it:
//! then it asks again, as root (decision 64).

use std::fs;

use warren_base::{Errno, Ino};
use warren_proto::typed::{self, LookedUp};
use warren_proto::{Answer, Attr, FileName, Request};

use super::Call;

const CAP_CHOWN: u32 = 0;
const CAP_FOWNER: u32 = 3;

/// The request once more, if it was refused and the caller has a capability for it.
pub(super) fn ask_again(
    call: &mut Call<'_>,
    request: &Request,
    payload_len: usize,
    refused: Answer,
) -> Answer {
    if !matches!(refused, Err(Errno::EPERM)) || !may_act(call, request).unwrap_or(false) {
        return refused;
    }
    let caller = std::mem::replace(&mut call.header.uid, 0);
    let answer = call.step(request, payload_len);
    call.header.uid = caller;
    answer
}

/// Whether the caller has the capability for this request (`capable_wrt_inode_uidgid`).
fn may_act(call: &mut Call<'_>, request: &Request) -> Result<bool, Errno> {
    let capability = match request {
        Request::SetAttr { set, .. } if set.uid.or(set.gid).is_some() => CAP_CHOWN,
        Request::SetAttr { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::Unlink { .. }
        | Request::Rmdir { .. }
        | Request::Rename { .. } => CAP_FOWNER,
        _ => return Ok(false),
    };
    let (uid, thread) = (call.header.uid, call.header.thread);
    if uid == 0 || thread == 0 || !is_capable(thread, uid, capability) {
        return Ok(false);
    }
    if is_in_our_namespace(thread) {
        return Ok(true);
    }
    let [uids, gids] = ["uid_map", "gid_map"].map(|map| Ranges::of(thread, map));
    let concerns = concerned(call, request)?;
    Ok(concerns.iter().all(|attr| uids.contains(attr.uid) && gids.contains(attr.gid)))
}

/// The inodes whose owner counts, but those that the caller owns.
fn concerned(call: &mut Call<'_>, request: &Request) -> Result<Vec<Attr>, Errno> {
    let mut concerned = match request {
        Request::SetAttr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. } => vec![call.attr_of(*ino)?.0],
        Request::Unlink { dir, name } | Request::Rmdir { dir, name } => named(call, *dir, name)?,
        Request::Rename { from, from_name, dir, name, .. } => {
            let mut victims = named(call, *from, from_name)?;
            victims.append(&mut named(call, *dir, name)?);
            victims
        }
        _ => Vec::new(),
    };
    concerned.retain(|attr| attr.uid != call.header.uid);
    Ok(concerned)
}

/// The inode of this name, if there is one.
fn named(call: &mut Call<'_>, dir: Ino, name: &FileName) -> Result<Vec<Attr>, Errno> {
    match call.call(typed::Lookup { dir, name: name.clone() })? {
        LookedUp::Entry(entry) => Ok(vec![call.attr_of(entry.ino)?.0]),
        LookedUp::Absent(_) => Ok(Vec::new()),
    }
}

/// Whether the thread still acts as this user and has the capability in its namespace. It waits for
/// its answer; but if it was killed by an `execve` of another thread, that one has its number, and
/// the rights of a set-uid program as well as its user.
fn is_capable(thread: u32, uid: u32, capability: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    acts_as(&status, uid) && effective(&status) >> capability & 1 != 0
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

/// The line has the real, effective, saved and file-system user.
fn acts_as(status: &str, uid: u32) -> bool {
    let users = field(status, "Uid:").unwrap_or_default();
    users.split_whitespace().nth(3).and_then(|user| user.parse().ok()) == Some(uid)
}

fn effective(status: &str) -> u64 {
    let set = field(status, "CapEff:").unwrap_or_default();
    u64::from_str_radix(set.trim(), 16).unwrap_or(0)
}

fn is_in_our_namespace(thread: u32) -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    of("self").is_some_and(|ours| of(&thread.to_string()) == Some(ours))
}

/// The users or groups that exist in a user namespace, by their numbers here.
struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    fn of(thread: u32, map: &str) -> Self {
        Self::parse(&fs::read_to_string(format!("/proc/{thread}/{map}")).unwrap_or_default())
    }

    /// Each line has the first number inside, the first outside, and how many there are.
    fn parse(text: &str) -> Self {
        let range = |line: &str| {
            let mut words = line.split_whitespace().skip(1).map(str::parse);
            Some((words.next()?.ok()?, words.next()?.ok()?))
        };
        Self(text.lines().filter_map(range).collect())
    }

    fn contains(&self, number: u32) -> bool {
        self.0.iter().any(|(first, count)| number.checked_sub(*first).is_some_and(|at| at < *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tsh\nUid:\t1000\t1001\t1002\t1003\nGid:\t4\t4\t4\t4\n\
        CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000008\n";

    #[test]
    fn the_user_of_the_file_system_and_the_effective_set_count() {
        assert!(acts_as(STATUS, 1003));
        assert!(!acts_as(STATUS, 1000) && !acts_as("", 0));
        assert_eq!(effective(STATUS) >> CAP_FOWNER & 1, 1);
        assert_eq!(effective(STATUS) >> CAP_CHOWN & 1, 0);
        assert_eq!(effective(""), 0);
    }

    #[test]
    fn this_thread_is_capable_only_as_its_own_user() {
        let thread = std::process::id();
        assert!(is_in_our_namespace(thread));
        assert!(!is_capable(thread, 12_345, CAP_FOWNER));
        assert!(!is_capable(0, 0, CAP_FOWNER));
    }

    #[test]
    fn only_mapped_numbers_are_in_a_namespace() {
        let map =
            Ranges::parse("         0     100000      65536\n     70000       1000          1\n");
        assert!(map.contains(100_000) && map.contains(165_535) && map.contains(1000));
        assert!(!map.contains(0) && !map.contains(165_536) && !map.contains(1001));
        assert!(!Ranges::parse("").contains(0) && !Ranges::parse("0 x 1\n").contains(0));
        assert!(Ranges::parse("0 0 4294967295\n").contains(7));
    }
}
