//! The value of `--clients`: `all`, `:GROUP` or `USER`, each by name or number.

use nix::unistd::{Group, User};
use warren_runtime::Clients;

/// A user named `all` can only be given by number.
const ALL: &str = "all";

pub(crate) fn parse(text: &str) -> Result<Clients, String> {
    if text == ALL {
        return Ok(Clients::All);
    }
    if let Some(group) = text.strip_prefix(':') {
        let named = |name: &str| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()));
        return number_of(group, named)
            .map(Clients::Group)
            .ok_or_else(|| format!("no group {group:?}; name one, or give its number"));
    }
    let named = |name: &str| Ok(User::from_name(name)?.map(|user| user.uid.as_raw()));
    number_of(text, named)
        .map(Clients::User)
        .ok_or_else(|| format!("no user {text:?}; give USER, :GROUP or all"))
}

fn number_of(text: &str, named: impl Fn(&str) -> nix::Result<Option<u32>>) -> Option<u32> {
    // The largest number means no user or group.
    let number = text.parse().ok().filter(|&number: &u32| number != u32::MAX);
    number.or_else(|| named(text).ok().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_groups_and_everyone_are_named() {
        assert_eq!(parse("all"), Ok(Clients::All));
        assert_eq!(parse("root"), Ok(Clients::User(0)));
        assert_eq!(parse("1234"), Ok(Clients::User(1234)));
        assert_eq!(parse(":root"), Ok(Clients::Group(0)));
        assert_eq!(parse(":1234"), Ok(Clients::Group(1234)));
        for text in ["", ":", "no-such-user", ":no-such-group", "-1", "4294967295"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
