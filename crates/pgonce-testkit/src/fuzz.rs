//! Inputs for parsers: arbitrary bytes, and samples that were damaged.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// What parsers trip over.
const TOKENS: [&[u8]; 34] = [
    b"\"",
    b"\"\"",
    b"\\",
    b"'",
    b"''",
    b",",
    b";",
    b"=",
    b":",
    b"/",
    b"//",
    b".",
    b"#",
    b"%",
    b"%zz",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xef\xbb\xbf",
    "\u{e9}".as_bytes(),
    "\u{1f600}".as_bytes(),
    b"[",
    b"[[",
    b"{",
    b"}",
    b"-0",
    b"1e999",
    b"18446744073709551616",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"  ",
];

/// No input is longer.
const MAX_BYTES: usize = 64 * 1024;

/// Calls a check with `count` inputs: arbitrary bytes, and copies of the samples in which bytes were removed, repeated, replaced and
/// mixed. The check panics where something does not hold.
///
/// The seed is printed, and so is the input of a check that panicked; the variable `PGONCE_SEED` repeats a run. `PGONCE_FUZZ` is
/// another number of inputs, for a longer run.
///
/// ```
/// pgonce_testkit::fuzz(&["1,2", "\"a\",b"], 500, |input| {
///     if let Ok(text) = std::str::from_utf8(input) {
///         assert_eq!(text.as_bytes(), input);
///     }
/// });
/// ```
#[allow(clippy::print_stderr, reason = "who repeats a run needs its seed")]
pub fn fuzz<S: AsRef<[u8]>>(samples: &[S], count: usize, check: impl Fn(&[u8])) {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = number("PGONCE_SEED").unwrap_or_else(rand::random);
    eprintln!("to repeat this run: PGONCE_SEED={seed}");
    let count =
        number("PGONCE_FUZZ").map_or(count, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let mut random = StdRng::seed_from_u64(seed);
    let samples: Vec<&[u8]> = samples.iter().map(AsRef::as_ref).collect();
    // What is right, and nothing at all, before anything is damaged.
    let first = samples.iter().map(|sample| sample.to_vec());
    let first: Vec<Vec<u8>> = first.chain([Vec::new()]).collect();
    for n in 0..count.max(first.len()) {
        let input = match first.get(n) {
            Some(input) => input.clone(),
            None => made(&samples, &mut random),
        };
        if let Err(panicked) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
            eprintln!("the input was {:?}", String::from_utf8_lossy(&input));
            eprintln!("its bytes were {input:?}");
            resume_unwind(panicked);
        }
    }
}

fn made(samples: &[&[u8]], random: &mut StdRng) -> Vec<u8> {
    let mut input = match samples {
        [] => Vec::new(),
        _ if random.random_ratio(1, 4) => Vec::new(),
        _ => pick(samples, random).to_vec(),
    };
    if input.is_empty() {
        for _ in 0..random.random_range(0..24) {
            match random.random_bool(0.5) {
                true => input.extend_from_slice(pick(&TOKENS, random)),
                false => input.push(random.random()),
            }
        }
    }
    for _ in 0..random.random_range(1..6) {
        damage(&mut input, samples, random);
    }
    input.truncate(MAX_BYTES);
    input
}

fn damage(input: &mut Vec<u8>, samples: &[&[u8]], random: &mut StdRng) {
    let range = some_range(input.len(), random);
    match random.random_range(0..7) {
        0 => drop(input.drain(range)),
        1 => {
            // Deep nesting, long names: seldom many times.
            let times = if random.random_ratio(1, 20) { 5000 } else { 3 };
            let piece = input[range.clone()].to_vec();
            let times = times.min(MAX_BYTES / piece.len().max(1));
            input.splice(range.end..range.end, piece.repeat(times));
        }
        2 => {
            if let Some(byte) = input.get_mut(range.start) {
                *byte = random.random();
            }
        }
        3 => drop(input.splice(
            range.start..range.start,
            pick(&TOKENS, random).iter().copied(),
        )),
        4 => drop(input.splice(range, pick(&TOKENS, random).iter().copied())),
        5 if !samples.is_empty() => {
            let other = pick(samples, random);
            let piece = some_range(other.len(), random);
            input.splice(range, other[piece].iter().copied());
        }
        _ => input.truncate(range.start),
    }
}

fn some_range(length: usize, random: &mut StdRng) -> std::ops::Range<usize> {
    let start = random.random_range(0..=length);
    // Short ones, most of the time.
    let most = if random.random_bool(0.8) { 8 } else { length };
    start..random.random_range(start..=length.min(start + most))
}

fn pick<'a>(from: &[&'a [u8]], random: &mut StdRng) -> &'a [u8] {
    from[random.random_range(0..from.len())]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn samples_come_first_and_inputs_differ() {
        let seen = RefCell::new(Vec::new());
        fuzz(&["a,b", "c"], 500, |input| {
            seen.borrow_mut().push(input.to_vec())
        });
        let seen = seen.into_inner();
        assert_eq!(seen[..3], [b"a,b".to_vec(), b"c".to_vec(), Vec::new()]);
        let distinct: BTreeSet<_> = seen.iter().collect();
        assert!(
            seen.len() >= 3 && distinct.len() > 100,
            "{}",
            distinct.len()
        );
        assert!(seen.iter().all(|input| input.len() <= MAX_BYTES));
    }

    #[test]
    fn a_check_that_fails_fails_the_test() {
        let failed = catch_unwind(|| fuzz(&["x"], 10, |input| assert!(input.is_empty())));
        assert!(failed.is_err());
    }
}
