//! Whole fleets of real processes on pools in a temporary directory.
//!
//! This test has its own `main`, because the fleet's processes run the same program.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use warren_runtime::{ServeOptions, dispatch, serve};

mod adoption;
mod cells;
mod clients;
mod crowd;
mod faults;
mod files;
mod ground;
mod lifecycle;
#[cfg(feature = "plants")]
mod plants;
mod privileges;
mod recovery;
mod stops;

/// The role of a process that starts a fleet and is killed.
const STARTER: &str = "starter";
/// The role of a process that serves a pool in the foreground.
const SERVER: &str = "server";
/// The role of a client that makes directories until it is killed.
const MAKER: &str = "maker";

/// The role of a process with user 0 that has no capabilities.
const BARE: &str = "bare";
/// The role of a client that prints what status shows it.
const VIEWER: &str = "viewer";

/// The tests by their names.
macro_rules! named {
    ($($(#[$only:meta])? $test:path),* $(,)?) => {
        &[$($(#[$only])? (stringify!($test), $test)),*]
    };
}

const TESTS: &[(&str, fn())] = named![
    clients::requests_of_many_threads_are_answered,
    clients::any_number_of_cells_serves_a_pool,
    files::files_survive_another_number_of_cells,
    clients::many_clients_work_at_once,
    clients::a_first_call_waits_for_a_map_that_is_being_written,
    clients::a_list_of_attributes_fits_its_answer,
    lifecycle::a_pool_has_one_fleet,
    lifecycle::bad_pools_are_named,
    lifecycle::status_shows_cells_and_clients,
    cells::a_dead_cell_has_a_successor,
    adoption::a_dead_supervisor_has_a_successor,
    adoption::clients_come_and_go_while_supervisors_die,
    adoption::cells_and_supervisors_die_together,
    adoption::a_stop_outlives_the_supervisor,
    stops::a_stop_whose_trial_fails_leaves_the_mounts,
    stops::a_fleet_that_stays_outlives_a_refused_stop_of_its_starter,
    stops::a_stop_is_refused_while_a_mount_is_in_use,
    stops::a_fleet_whose_pool_was_deleted_is_stopped_by_its_name,
    stops::a_stop_with_a_mount_is_asked_twice_and_outlives_the_supervisor,
    adoption::a_failed_flush_is_known_to_the_next_supervisor,
    adoption::a_supervisor_that_fails_has_a_successor,
    adoption::a_supervisor_that_fails_ever_again_ends_the_fleet,
    adoption::a_supervisor_that_crashes_ever_again_ends_the_fleet,
    adoption::a_supervisor_that_dies_ever_again_ends_the_fleet,
    adoption::packets_of_a_dead_supervisor_outlive_a_shortage_of_descriptors,
    cells::all_cells_die_at_once,
    cells::a_cell_with_a_broken_link_is_replaced,
    cells::calls_outlive_the_cell_that_they_wait_for,
    cells::what_was_written_outlives_its_cell,
    cells::a_successor_waits_for_its_predecessors_writes,
    faults::a_damaged_record_ends_its_sender,
    faults::damaged_vitals_break_nothing_else,
    faults::cells_that_damage_each_other_for_ever_end_the_fleet,
    #[cfg(feature = "plants")]
    plants::a_request_that_ends_every_cell_is_refused,
    faults::acknowledged_writes_outlive_a_fleet_that_ends,
    faults::what_a_cell_had_logged_outlives_its_fleet,
    recovery::many_cuts_are_recovered,
    recovery::what_was_synced_in_shards_that_were_given_up_outlives_the_repair,
    cells::a_cell_that_always_dies_ends_the_fleet,
    adoption::a_fleet_continues_when_its_output_is_closed,
    lifecycle::a_fleet_ends_with_its_starter,
    lifecycle::a_free_pool_has_no_socket_of_the_fleet_before,
    clients::a_client_may_die_in_the_middle_of_a_change,
    clients::waiting_requests_delay_no_others,
    clients::a_shortage_of_descriptors_refuses_and_passes,
    clients::unread_welcomes_leave_room_for_the_fleet,
    clients::silent_connections_leave_room_for_the_fleet,
    clients::the_regions_of_a_connection_are_all_its_memory,
    clients::forged_requests_are_refused,
    crowd::a_thousand_small_clients_need_few_descriptors,
    crowd::only_mounts_change_their_rules,
    crowd::only_sizes_of_the_set_are_admitted,
    crowd::threads_share_slots,
    privileges::user_0_without_capabilities_is_not_root,
    privileges::a_user_sees_only_own_clients,
    lifecycle::an_idle_fleet_sleeps,
];

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = dispatch(&args).or_else(|| play(&args)) {
        return code;
    }
    let filter = args.iter().filter_map(|arg| arg.to_str()).find(|arg| !arg.starts_with('-'));
    let mut passed = 0;
    for (name, test) in TESTS {
        if filter.is_none_or(|filter| name.contains(filter)) {
            println!("test {name} ...");
            test();
            passed += 1;
        }
    }
    println!("\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
    ExitCode::SUCCESS
}

/// The roles of this test's own processes, each with a pool.
fn play(args: &[OsString]) -> Option<ExitCode> {
    let [role, pool] = args else { return None };
    let pool = Path::new(pool);
    match role.to_str()? {
        STARTER => Some(lifecycle::start_and_wait(pool)),
        SERVER => {
            let served = serve(&ServeOptions::new(pool, 2), |_| println!("ready"));
            Some(served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
        }
        MAKER => clients::make_for_ever(pool),
        BARE => Some(privileges::be_bare(pool)),
        lacking if lacking.starts_with(BARE) => {
            Some(privileges::lack(&lacking[BARE.len() + 1..], pool))
        }
        VIEWER => Some(privileges::view(pool)),
        _ => None,
    }
}
