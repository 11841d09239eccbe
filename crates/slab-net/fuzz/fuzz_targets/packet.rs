//! The programs of `tests/packet_differential`, chosen by coverage: packets and `bytes` side by side.
#![no_main]

#[path = "../../tests/packet_differential/input.rs"]
mod input;
#[path = "../../tests/packet_differential/machine.rs"]
mod machine;
#[path = "../../tests/packet_differential/op.rs"]
mod op;

libfuzzer_sys::fuzz_target!(init: machine::prepare(), |bytes: &[u8]| input::run(bytes));
