#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| opencode_conductor_fuzz::claude_line(input));
