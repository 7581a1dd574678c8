use std::collections::BTreeMap;

use super::*;
use crate::Mint;
use warren_base::{CellId, Rng};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn mint() -> Mint {
    Mint::new(&mut Rng::new(5))
}

#[test]
fn senders_are_spread_evenly_and_keep_what_they_got() {
    let (mut registry, key) = (Registry::new(), mint().draw());
    let inbox = name("/fleet/inbox");
    for cell in 0..3 {
        registry.register(&inbox, CellId(cell), &[key]).unwrap();
    }
    let mut given: BTreeMap<CellId, usize> = BTreeMap::new();
    for _ in 0..9 {
        let first = registry.resolve(&inbox, key, None).unwrap();
        *given.entry(first.address).or_default() += 1;
        let again = registry.resolve(&inbox, key, Some(first.registration)).unwrap();
        assert_eq!(first, again);
    }
    assert_eq!(given.into_values().collect::<Vec<_>>(), [3, 3, 3]);
}

#[test]
fn only_registrants_that_admit_the_sender_are_offered() {
    let (mut registry, mut mint) = (Registry::new(), mint());
    let (theirs, ours) = (mint.draw(), mint.draw());
    let inbox = name("/inbox");
    registry.register(&inbox, CellId(1), &[theirs]).unwrap();
    let second = registry.register(&inbox, CellId(2), &[theirs, ours]).unwrap();
    for _ in 0..4 {
        assert_eq!(registry.resolve(&inbox, ours, None).unwrap().address, CellId(2));
    }
    assert!(registry.revoke(second, ours));
    assert_eq!(registry.resolve(&inbox, ours, Some(second)), Err(ResolveError::Refused));
    assert!(registry.admits(second, theirs), "the other capability stays");
    registry.grant(second, ours).unwrap();
    assert!(registry.resolve(&inbox, ours, None).is_ok());
    assert_eq!(registry.resolve(&name("/absent"), ours, None), Err(ResolveError::Unknown));
}

#[test]
fn a_dead_process_disappears_from_every_name() {
    let (mut registry, key) = (Registry::new(), mint().draw());
    for text in ["/cell/1/inbox", "/fleet/inbox"] {
        registry.register(&name(text), CellId(1), &[key]).unwrap();
    }
    let other = registry.register(&name("/fleet/inbox"), CellId(2), &[key]).unwrap();
    assert_eq!(registry.deregister_address(&CellId(1)), 2);
    assert_eq!(registry.names().count(), 1);
    assert_eq!(registry.resolve(&name("/fleet/inbox"), key, None).unwrap().registration, other);
    assert!(registry.deregister(other));
    assert!(!registry.deregister(other));
    assert_eq!(registry.names().count(), 0);
}

#[test]
fn limits_hold() {
    let (mut registry, mut mint) = (Registry::new(), mint());
    let key = mint.draw();
    let inbox = name("/inbox");
    for address in 0..REGISTRANTS_MAX {
        registry.register(&inbox, address, &[key]).unwrap();
    }
    assert_eq!(registry.register(&inbox, 0, &[key]), Err(RegisterError::Exists));
    assert_eq!(registry.register(&inbox, REGISTRANTS_MAX, &[key]), Err(RegisterError::Full));
    let too_many: Vec<_> = (0..=crate::CAPABILITIES_MAX).map(|_| mint.draw()).collect();
    let other = name("/other");
    assert_eq!(registry.register(&other, 0, &too_many), Err(RegisterError::BadCapabilities));
    assert_eq!(registry.resolve(&other, key, None), Err(ResolveError::Unknown));
}

/// Random changes against a plain list of the registrants.
#[test]
fn a_random_history_matches_the_plain_model() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let (mut registry, key) = (Registry::new(), mint().draw());
        let names = [name("/a"), name("/b"), name("/a/b")];
        let mut model: Vec<(RegistrationId, Name, u16)> = Vec::new();
        for _ in 0..300 {
            let (at, address) = (rng.pick(&names).clone(), rng.below(6) as u16);
            if rng.chance(1, 2) {
                let exists = model.iter().any(|(_, n, a)| *n == at && *a == address);
                match registry.register(&at, address, &[key]) {
                    Ok(id) => model.push((id, at, address)),
                    Err(why) => assert!(exists && why == RegisterError::Exists, "seed {seed}"),
                }
            } else if !model.is_empty() {
                let (id, ..) = model.swap_remove(rng.below(model.len() as u64) as usize);
                assert!(registry.deregister(id), "seed {seed}");
            }
            for at in &names {
                let found = registry.resolve(at, key, None).ok().map(|found| found.registration);
                let expected = |id| model.iter().any(|(i, n, _)| *i == id && n == at);
                assert_eq!(found.is_some(), model.iter().any(|(_, n, _)| n == at), "seed {seed}");
                assert!(found.is_none_or(expected), "seed {seed}");
            }
        }
    }
}

#[test]
fn the_turn_stays_with_the_registrant_that_had_it() {
    let (mut registry, key) = (Registry::new(), mint().draw());
    let inbox = name("/inbox");
    let ids = [0, 1, 2, 3].map(|address| registry.register(&inbox, address, &[key]).unwrap());
    let next =
        |registry: &mut Registry<i32>| registry.resolve(&inbox, key, None).unwrap().registration;
    assert_eq!([next(&mut registry), next(&mut registry)], [ids[0], ids[1]]);
    assert!(registry.deregister(ids[1]));
    assert_eq!([next(&mut registry), next(&mut registry)], [ids[2], ids[3]]);
}
