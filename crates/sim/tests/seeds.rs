//! The simulator with the real cells, clients and supervisor: seeds pass, and planted bugs are
//! found.

use warren_cell::Plant;
use warren_sim::{Failure, Options, Summary, rare, run, run_many};

/// Few enough for every build; `warren sim` runs any number.
const SEEDS: u64 = 400;
/// In which a shard is damaged.
const DAMAGE_SEEDS: u64 = 200;

/// In which a cell is taken out for a while.
const OUTAGE_SEEDS: u64 = 200;

/// A planted bug must be found within this many seeds.
const CONTROL_SEEDS: u64 = 1000;

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
    let outcome = run_many(Options::new(1), SEEDS, threads(), &|_| {});
    assert_passed(outcome, rare::SIMULATION);
}

/// In this seed a client closes two handles of a file at the same time and keeps a third. Neither
/// close was taken for the last one, so the third stayed open when the file lost its name.
#[test]
fn closes_that_are_under_way_together_keep_no_handle_open() {
    assert_passed(run(Options::new(94_025_869)), &[]);
}

#[test]
fn only_what_needs_a_damaged_shard_is_refused() {
    let options = Options { damage: true, ..Options::new(1) };
    let outcome = run_many(options, DAMAGE_SEEDS, threads(), &|_| {});
    assert_passed(outcome, rare::DAMAGED_SIMULATION);
}

#[test]
fn a_cell_that_is_taken_out_has_lost_nothing_when_it_is_back() {
    let options = Options { outage: true, ..Options::new(1) };
    let outcome = run_many(options, OUTAGE_SEEDS, threads(), &|_| {});
    assert_passed(outcome, rare::OUTAGES);
}

#[test]
fn the_same_seed_runs_alike() {
    for seed in [3, 4] {
        let hashes = [(); 2].map(|()| run(Options::new(seed)).map(|summary| summary.hash));
        match hashes {
            [Ok(one), Ok(two)] => assert_eq!(one, two, "seed {seed}"),
            [Err(failure), _] | [_, Err(failure)] => panic!("{failure}"),
        }
    }
}

/// The seed that finds the bug passes without it, so the plant caused the failure.
fn is_found(plant: Plant) {
    is_found_from(1, plant);
}

/// The same for a bug that few seeds find, which begins near such a seed.
fn is_found_from(first: u64, plant: Plant) {
    is_found_with(Options { plant: Some(plant), ..Options::new(first) });
}

fn is_found_in_outages(plant: Plant) {
    is_found_with(Options { plant: Some(plant), outage: true, ..Options::new(1) });
}

fn is_found_with(options: Options) {
    let plant = options.plant.expect("one is planted");
    match run_many(options, CONTROL_SEEDS, threads(), &|_| {}) {
        Ok(_) => panic!("{plant:?} was not found in {CONTROL_SEEDS} seeds"),
        Err(found) => {
            if let Err(failure) = run(Options { seed: found.seed, plant: None, ..options }) {
                panic!("fails without {plant:?} too: {failure}");
            }
        }
    }
}

#[test]
fn an_abort_that_leaves_its_locks_is_found() {
    is_found(Plant::SkipAbort);
}

#[test]
fn a_change_that_revokes_nothing_is_found() {
    is_found(Plant::ForgetRevoke);
}

#[test]
fn a_block_with_two_owners_is_found() {
    is_found(Plant::DoubleAllocate);
}

#[test]
fn a_lost_wakeup_is_found() {
    is_found(Plant::LoseWakeup);
}

#[test]
fn an_end_of_decisions_before_their_acknowledgements_is_found() {
    is_found(Plant::SayAllEarly);
}

#[test]
fn a_false_accuser_that_is_spared_is_found() {
    is_found(Plant::SpareAccusers);
}

#[test]
fn a_stamp_used_twice_is_found() {
    is_found(Plant::ReuseStamp);
}

#[test]
fn a_change_known_before_its_words_are_cleared_is_found() {
    is_found(Plant::RevokeAfterCommit);
}

#[test]
fn a_change_that_waits_for_no_recall_is_found() {
    is_found(Plant::SkipRecall);
}

#[test]
fn a_grant_of_what_is_being_recalled_is_found() {
    is_found(Plant::GrantDuringRecall);
}

#[test]
fn a_recall_that_leaves_a_fronts_own_copies_is_found() {
    is_found_from(1_000, Plant::RecallKeepsCopies);
}

#[test]
fn a_handle_that_is_closed_under_its_lease_is_found() {
    is_found(Plant::CloseUsed);
}

#[test]
fn copies_of_a_file_that_a_kernel_may_change_are_found() {
    is_found(Plant::MapBesideCopies);
}

#[test]
fn a_handle_kept_of_a_file_that_a_kernel_may_change_is_found() {
    is_found(Plant::KeepBesideMapping);
}

#[test]
fn a_file_taken_over_with_a_wrong_capability_is_found() {
    is_found(Plant::ClaimWithoutCapability);
}

#[test]
fn a_file_taken_over_that_is_not_open_is_found() {
    is_found(Plant::ClaimUnopened);
}

#[test]
fn data_that_come_with_an_open_file_and_are_not_there_are_found() {
    is_found(Plant::OpenDataMissing);
}

#[test]
fn neighbours_without_leases_of_their_own_are_found() {
    is_found(Plant::NeighboursOneLease);
}

#[test]
fn neighbours_in_a_directory_that_may_not_be_read_are_found() {
    is_found(Plant::NeighboursUnread);
}

#[test]
fn objects_granted_to_fronts_without_marks_are_found() {
    is_found(Plant::GrantUnmarked);
}

#[test]
fn a_new_name_that_leaves_others_listings_valid_is_found() {
    is_found(Plant::KeepListings);
}

#[test]
fn a_new_mode_that_leaves_the_names_of_a_directory_valid_is_found() {
    is_found(Plant::KeepSearch);
}

#[test]
fn two_fronts_that_write_a_file_through_their_caches_are_found() {
    is_found(Plant::CacheTwoWriters);
}

#[test]
fn a_truncation_that_recalls_no_pages_is_found() {
    is_found_from(400, Plant::TruncateUnrecalled);
}

#[test]
fn a_punched_page_that_is_still_readable_is_found() {
    is_found(Plant::PunchKeepsPages);
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
fn a_lock_granted_before_old_pages_are_dropped_is_found() {
    is_found_from(5_000, Plant::LockBeforeRecall);
}

#[test]
fn a_front_that_waits_for_its_own_recall_is_found() {
    is_found(Plant::WaitForOwnRecall);
}

#[test]
fn a_successor_of_a_front_that_forgets_recalls_is_found() {
    is_found(Plant::ForgetRecalls);
}

#[test]
fn a_capability_that_a_write_leaves_is_found() {
    is_found(Plant::KeepCapability);
}

#[test]
fn a_default_list_that_is_not_inherited_is_found() {
    is_found(Plant::DropDefaultAcl);
}

#[test]
fn locks_of_the_dead_are_found() {
    is_found(Plant::KeepLocks);
}

#[test]
fn a_link_that_is_read_on_behind_damage_is_found() {
    is_found(Plant::ReadOn);
}

#[test]
fn inode_numbers_accepted_without_a_capability_are_found() {
    is_found(Plant::NumbersAreAuthority);
}

#[test]
fn a_caretaker_that_forgets_what_it_owes_is_found() {
    is_found_in_outages(Plant::ForgetOwed);
}

#[test]
fn a_caretaker_that_frees_its_log_is_found() {
    is_found_in_outages(Plant::FreeKeptLog);
}

#[test]
fn a_caretaker_that_does_not_log_who_is_gone_is_found() {
    is_found_in_outages(Plant::ForgetExpelled);
}

#[test]
fn a_successor_that_keeps_lease_words_is_found() {
    is_found(Plant::KeepWords);
}

#[test]
fn a_request_executed_twice_is_found() {
    is_found(Plant::ExecuteTwice);
}

#[test]
fn a_successor_that_starts_before_its_predecessors_writes_are_done_is_found() {
    is_found(Plant::StartEarly);
}

#[test]
fn a_sync_that_succeeds_after_a_failed_checkpoint_is_found() {
    is_found(Plant::IgnoreFailure);
}

#[test]
fn a_look_at_an_inode_before_what_was_posted_on_it_is_found() {
    is_found(Plant::LookUndrained);
}

#[test]
fn copies_beside_a_delegation_are_found() {
    is_found(Plant::DelegateBesideCopies);
}

#[test]
fn a_delegation_that_ends_and_keeps_its_word_is_found() {
    is_found(Plant::KeepDelegationWord);
}

#[test]
fn a_record_that_a_successor_executes_again_is_found() {
    is_found(Plant::ForgetPosition);
}

#[test]
fn a_time_of_a_record_that_cannot_be_true_is_found() {
    is_found(Plant::BelieveTime);
}

#[test]
fn blocks_set_aside_for_a_delegation_that_has_ended_are_found() {
    is_found(Plant::KeepCredit);
}

#[test]
fn a_number_that_two_records_use_is_found() {
    is_found(Plant::UseNumberTwice);
}

#[test]
fn numbers_that_a_log_does_not_name_are_found() {
    is_found(Plant::ForgetNumbers);
}

#[test]
fn a_successor_that_serves_before_records_are_executed_is_found() {
    is_found(Plant::ServeBeforeInherited);
}

#[test]
fn a_write_that_is_added_to_a_record_that_was_read_is_found() {
    // One of the first seeds makes a history whose check takes minutes.
    is_found_from(4_000, Plant::AddToRead);
}

#[test]
fn a_record_that_is_executed_without_a_delegation_is_found() {
    is_found(Plant::ExecuteUncovered);
}
