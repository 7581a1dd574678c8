//! The crash campaign: seeds pass and reach rare branches, and planted bugs are found.

use warren_cell::Plant;
use warren_sim::crash::{Options, run, run_many};
use warren_sim::{Failure, Summary, rare};

/// Few enough for every build.
const SEEDS: u64 = 900;
/// In which a shard is damaged.
const DAMAGE_SEEDS: u64 = 200;
/// In which cells are taken out for a while.
const OUTAGE_SEEDS: u64 = 100;
/// A planted bug must be found within this many seeds.
const CONTROL_SEEDS: u64 = 1000;

const SOUND: Options = Options { sound_device: false, plant: None, damage: false, outage: false };

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// All seeds have passed, and each of these has happened in some of them.
fn assert_passed(outcome: Result<Summary, Failure>, rare: &[&'static str]) {
    let summary = outcome.unwrap_or_else(|failure| panic!("{failure}"));
    let missed = summary.never_reached(rare);
    assert!(missed.is_empty(), "never reached: {missed:?}");
}

#[test]
fn seeds_pass_and_reach_the_rare_branches() {
    let outcome = run_many(1, SEEDS, SOUND, threads(), &|_| {});
    assert_passed(outcome, rare::CRASHES);
}

#[test]
fn what_needs_no_damaged_shard_is_as_it_was_promised() {
    let options = Options { damage: true, ..SOUND };
    let outcome = run_many(1, DAMAGE_SEEDS, options, threads(), &|_| {});
    assert_passed(outcome, rare::DAMAGED_CRASHES);
}

#[test]
fn what_was_synced_is_there_although_a_cell_was_taken_out() {
    let options = Options { outage: true, ..SOUND };
    let outcome = run_many(1, OUTAGE_SEEDS, options, threads(), &|_| {});
    assert_passed(outcome, rare::CRASH_OUTAGES);
}

#[test]
fn the_same_seed_runs_alike() {
    let hashes = [(); 2].map(|()| run(3, SOUND).map(|summary| summary.hash));
    match hashes {
        [Ok(one), Ok(two)] => assert_eq!(one, two),
        [Err(failure), _] | [_, Err(failure)] => panic!("{failure}"),
    }
}

/// The seed that finds the bug passes without it, so the plant caused the failure.
fn is_found(plant: Plant) {
    is_found_with(plant, SOUND);
}

fn is_found_with(plant: Plant, sound: Options) {
    is_found_from(1, plant, sound);
}

/// The same for a bug that few seeds find, which begins near such a seed.
fn is_found_from(first: u64, plant: Plant, sound: Options) {
    let options = Options { plant: Some(plant), ..sound };
    match run_many(first, CONTROL_SEEDS, options, threads(), &|_| {}) {
        Ok(_) => panic!("{plant:?} was not found in {CONTROL_SEEDS} seeds"),
        Err(found) => {
            if let Err(failure) = run(found.seed, sound) {
                panic!("fails without {plant:?} too: {failure}");
            }
        }
    }
}

#[test]
fn records_durable_before_their_data_are_found() {
    is_found(Plant::SkipDataFlush);
}

#[test]
fn a_caretaker_that_does_not_write_placed_pages_again_is_found() {
    is_found_from(1_600, Plant::ForgetPlaced, Options { outage: true, ..SOUND });
}

#[test]
fn a_rename_durable_before_the_data_of_the_file_is_found() {
    is_found(Plant::RenameBeforeData);
}

#[test]
fn a_hole_punched_before_the_log_has_the_data_of_the_file_is_found() {
    is_found(Plant::RangeBeforeData);
}

#[test]
fn a_shared_block_freed_once_too_often_is_found() {
    is_found(Plant::FreeShared);
}

#[test]
fn blocks_shared_before_they_are_written_are_found() {
    is_found(Plant::ShareUnwritten);
}

#[test]
fn an_fsync_answered_early_is_found() {
    is_found(Plant::AnswerEarly);
}

#[test]
fn a_block_used_again_too_early_is_found() {
    is_found(Plant::ReuseBlocks);
}

#[test]
fn a_moved_block_used_again_too_early_is_found() {
    is_found(Plant::ReuseEmptied);
}

#[test]
fn a_block_left_in_an_emptied_chunk_is_found() {
    is_found(Plant::LeaveLive);
}

#[test]
fn a_chunk_given_away_before_its_checkpoint_is_found() {
    is_found(Plant::GiveEarly);
}

#[test]
fn a_chunk_that_the_host_has_not_allocated_is_found() {
    is_found(Plant::ClaimUnallocated);
}

#[test]
fn a_forgotten_dependence_is_found() {
    is_found(Plant::ForgetDepends);
}

#[test]
fn a_failed_flush_that_is_not_reported_to_others_is_found() {
    is_found(Plant::HideLostFlush);
}

#[test]
fn a_supervisor_that_takes_over_without_a_flush_is_found() {
    is_found(Plant::AdoptUnflushed);
}

#[test]
fn a_damaged_page_that_is_taken_over_is_found() {
    is_found(Plant::KeepDamaged);
}

#[test]
fn a_loss_that_is_not_named_is_found() {
    is_found(Plant::KeepGeneration);
}
