//! Membership, admission and the fleet-wide checkpoint
