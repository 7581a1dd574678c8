//! The encoding of an answer for its slot.

use warren_base::Errno;
use warren_base::limits::BODY_MAX;
use warren_proto::{Answer, Beside};

/// Encodes the answer in `body`, or as an errno. A reply that does not fit the slot becomes EIO:
/// its length may come from a damaged image.
pub(super) fn encode(answer: &Answer, beside: &Beside, body: &mut Vec<u8>) -> Result<(), Errno> {
    body.clear();
    answer.as_ref().map_err(|&errno| errno)?.encode_body(beside, body);
    if body.len() > BODY_MAX {
        body.clear();
        return Err(Errno::EIO);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_proto::{Capability, Reply};

    #[test]
    fn an_answer_that_fits_no_slot_is_an_errno() {
        let mut body = Vec::new();
        let names = |count| Ok(Reply::XattrNames(vec![vec![b'x'; 255].into(); count]));
        let beside = Beside { granted: Capability(7), ..Beside::default() };
        let mut encoded = |answer| (encode(&answer, &beside, &mut body), body.clone());
        let (outcome, bytes) = encoded(names(31));
        assert_eq!(outcome, Ok(()));
        let reply = names(31).expect("a reply");
        let mut found = Beside::default();
        assert_eq!(Reply::from_body(&bytes, &mut found), Ok(reply));
        assert_eq!(found, beside);
        assert_eq!(encoded(names(33)), (Err(Errno::EIO), Vec::new()));
        assert_eq!(encoded(Err(Errno::ENOENT)), (Err(Errno::ENOENT), Vec::new()));
    }
}
