//! Tests that need the inside of more than one file, or another build: models for loom, schedules for shuttle, refused
//! memory, and what lies in which cache line. `TESTING.md` says what each is for.

#[cfg(not(any(loom, shuttle, miri)))]
mod faults;
#[cfg(not(any(loom, shuttle)))]
mod layout;
#[cfg(loom)]
pub(crate) mod model;
#[cfg(shuttle)]
mod schedule;
