//! The encoding of an answer for its slot.

use warren_base::Errno;
use warren_base::limits::BODY_MAX;
use warren_proto::{Answer, Attr, Capability, Lease};

/// Encodes the answer in `body`, or as an errno. A reply that does not fit the slot becomes EIO:
/// its length may come from a damaged image.
pub(super) fn encode(
    answer: &Answer,
    granted: Capability,
    changed: &[(Attr, Lease)],
    body: &mut Vec<u8>,
) -> Result<(), Errno> {
    body.clear();
    answer.as_ref().map_err(|&errno| errno)?.encode_body(granted, changed, body);
    if body.len() > BODY_MAX {
        body.clear();
        return Err(Errno::EIO);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_proto::Reply;

    #[test]
    fn an_answer_that_fits_no_slot_is_an_errno() {
        let mut body = Vec::new();
        let names = |count| Ok(Reply::XattrNames(vec![vec![b'x'; 255].into(); count]));
        let granted = Capability(7);
        let mut encoded = |answer| (encode(&answer, granted, &[], &mut body), body.clone());
        let (outcome, bytes) = encoded(names(31));
        assert_eq!(outcome, Ok(()));
        let reply = names(31).expect("a reply");
        let mut found = Capability::NONE;
        assert_eq!(Reply::from_body(&bytes, &mut found, &mut Vec::new()), Ok(reply));
        assert_eq!(found, granted);
        assert_eq!(encoded(names(33)), (Err(Errno::EIO), Vec::new()));
        assert_eq!(encoded(Err(Errno::ENOENT)), (Err(Errno::ENOENT), Vec::new()));
    }
}
