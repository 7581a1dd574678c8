use super::*;

/// Some of the sequences of one operation. `warren ace` runs all of them.
fn some(step: usize) -> Vec<Sequence> {
    singles().into_iter().step_by(step).collect()
}

#[test]
fn synced_data_is_there() {
    let campaign = Campaign::new(Options::default());
    let mut sequences = some(9);
    sequences.extend(pairs(1, 60));
    let summary = campaign.run(&sequences);
    assert!(summary.is_sound(), "{summary}");
    assert_eq!(summary.sequences, sequences.len() as u64);
    assert_eq!(summary.states, STATES as u64 * summary.boundaries);
    assert!(summary.replayed > summary.sequences && summary.torn > 0);
}

/// The pages are not contiguous, and the block of the log that names them is torn between sectors.
#[test]
fn a_synced_write_is_there_as_a_whole_or_not_at_all() {
    let apart = r#"Append("A/foo", 40000), Fsync("A/other"), Write("A/foo", 0, 4096), F"#;
    let is_apart = |sequence: &Sequence| sequence.to_string().starts_with(apart);
    let sequences: Vec<Sequence> = pairs(77, 20_000).into_iter().filter(is_apart).collect();
    assert!(sequences.len() > 1);
    let summary = Campaign::new(Options::default()).run(&sequences);
    assert!(summary.is_sound(), "{summary}");
}

/// After every kind of sync, also of the name alone.
#[test]
fn a_file_that_replaces_another_has_its_content() {
    let sequences = replacements();
    let summary = Campaign::new(Options::default()).run(&sequences);
    assert!(summary.is_sound(), "{summary}");
}

#[test]
fn a_device_that_does_not_flush_is_found() {
    let campaign = Campaign::new(Options { no_flush: true, plant: None });
    let summary = campaign.run(&some(29));
    assert!(summary.violations > 0 && summary.lost_pools + summary.faults > 0, "{summary}");
}

#[test]
fn planted_faults_are_found() {
    let plants =
        [Plant::AnswerEarly, Plant::SkipDataFlush, Plant::ForgetDepends, Plant::RenameBeforeData];
    for plant in plants {
        let campaign = Campaign::new(Options { no_flush: false, plant: Some(plant) });
        let mut sequences = some(1);
        sequences.extend(pairs(2, 300));
        let is_found = sequences.chunks(20).any(|some| !campaign.run(some).is_sound());
        assert!(is_found, "{plant:?} was not found");
    }
}

#[test]
fn a_sequence_always_does_the_same() {
    let campaign = Campaign::new(Options::default());
    let sequences = pairs(3, 10);
    let first = campaign.run(&sequences);
    assert_eq!(first.to_string(), campaign.run(&sequences).to_string());
}
