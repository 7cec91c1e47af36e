//! `pgonce lab regions`: regions with cuts, lags, clocks that differ and restored backups, simulated, and a verdict.
//!
//! The rules of the merge are written here a second time, and a test holds them against the database's.

mod algebra;
mod world;

use std::process::ExitCode;

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use world::{Outcome, World};

/// What to simulate. Everything follows from the seed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of random schedules of each rule
    #[arg(long, default_value_t = 1_000)]
    schedules: u64,
    /// Number of steps of each schedule
    #[arg(long, default_value_t = 400)]
    steps: usize,
    /// Number of regions [default: 2 to 5, at random]
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=63))]
    regions: Option<u8>,
    /// Only this rule
    #[arg(long)]
    mode: Option<Mode>,
    /// Repeats a run [default: a random one, which is printed]
    #[arg(long, env = "PGONCE_SEED")]
    seed: Option<u64>,
}

/// The rule of all scopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Work happens at home only
    Home,
    /// Work happens anywhere
    Local,
}

/// Simulates, prints what happened, and fails at the first schedule after which regions disagree, a double commit is not listed,
/// or, at home only, something happened twice.
// The command's output.
#[allow(clippy::print_stdout, clippy::print_stderr)]
pub fn run(args: &Args) -> ExitCode {
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}: pgonce lab regions --seed {seed} repeats this run");
    let modes = match args.mode {
        Some(mode) => vec![mode],
        None => vec![Mode::Home, Mode::Local],
    };
    for mode in modes {
        match simulate(args, mode, seed) {
            Ok(sum) => println!(
                "{mode:?}: {} schedules, {} effects, {} replays, {} sent home, {} restores, {} double commits, all listed; all regions agree",
                args.schedules, sum.effects, sum.replays, sum.sent_home, sum.restores, sum.doubles
            ),
            Err(why) => {
                eprintln!("{mode:?}: {why}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn simulate(args: &Args, mode: Mode, seed: u64) -> Result<Outcome, String> {
    let mut sum = Outcome::default();
    for schedule in 0..args.schedules {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(schedule));
        let count = args.regions.unwrap_or_else(|| random.random_range(2..6));
        let world = World::new(&mut random, count.into(), mode);
        let one = world.run(args.steps);
        let one = one.map_err(|why| format!("schedule {schedule}: {why}"))?;
        sum.effects += one.effects;
        sum.replays += one.replays;
        sum.sent_home += one.sent_home;
        sum.doubles += one.doubles;
        sum.restores += one.restores;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(seed: u64) -> Args {
        Args {
            schedules: 1_000,
            steps: 200,
            regions: None,
            mode: None,
            seed: Some(seed),
        }
    }

    #[test]
    #[expect(clippy::print_stderr, reason = "the seed of a run that fails")]
    fn a_thousand_schedules_of_each_rule_end_in_agreement_and_no_double_commit_is_silent() {
        let seed = rand::random();
        eprintln!("to repeat this run: pgonce lab regions --seed {seed}");
        let home = simulate(&args(seed), Mode::Home, seed).unwrap();
        assert_eq!(home.doubles, 0);
        let local = simulate(&args(seed), Mode::Local, seed).unwrap();
        assert!(
            local.doubles > 1_000 && local.replays > 1_000 && local.restores > 1_000,
            "{local:?}"
        );
    }

    #[test]
    fn a_seed_gives_the_same_run_again() {
        let outcome = |seed| format!("{:?}", simulate(&args(seed), Mode::Local, seed).unwrap());
        assert_eq!(outcome(7), outcome(7));
        assert_ne!(outcome(7), outcome(70_000));
    }
}
