//! Faults can be written down, read again, and drawn by lot.

use pgonce_testkit::{Action, Direction, Fault, FaultPlan, Spread, Trial};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_trial_survives_being_written_down(
        faults in prop::collection::vec(
            (any::<u64>(), any::<bool>(), any::<u64>(), 0..Action::ALL.len()),
            0..4,
        )
    ) {
        let faults = faults.into_iter().map(|(connection, to_server, message, action)| Fault {
            connection,
            direction: if to_server { Direction::ToServer } else { Direction::ToClient },
            message,
            action: Action::ALL[action],
        });
        let trial = Trial { faults: faults.collect() };
        prop_assert_eq!(trial.to_string().parse::<Trial>().unwrap(), trial.clone());
        let plan = FaultPlan { seed: 3, trials: vec![trial] };
        let kept = serde_json::to_string(&plan).unwrap();
        prop_assert_eq!(serde_json::from_str::<FaultPlan>(&kept).unwrap(), plan);
    }

    #[test]
    fn the_same_seed_draws_the_same_plan_within_its_bounds(seed: u64, connections in 1_u64..5) {
        let spread = Spread { connections, to_server: 4, to_client: 9, ..Spread::default() };
        let plan = FaultPlan::random(seed, 50, &spread);
        prop_assert_eq!(&plan, &FaultPlan::random(seed, 50, &spread));
        for fault in plan.trials.iter().flat_map(|trial| &trial.faults) {
            let below = if fault.direction == Direction::ToServer { 4 } else { 9 };
            prop_assert!(fault.connection < connections && fault.message < below);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text: String) {
        let _ = text.parse::<Trial>();
    }
}

#[test]
fn a_plan_is_readable_json() {
    let plan = FaultPlan {
        seed: 7,
        trials: vec!["c0:s3:cut-before".parse().unwrap()],
    };
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(text, r#"{"seed":7,"trials":["c0:s3:cut-before"]}"#);
}

#[test]
fn the_error_for_a_wrong_fault_says_how_to_write_it() {
    for wrong in [
        "s3:cut-before",
        "c0:x3:hold",
        "c0:s-1:hold",
        "c0:s+1:hold",
        "c0:s1:burn",
        "c0:s1:hold:x",
    ] {
        let outcome = wrong.parse::<Fault>().unwrap_err().to_string();
        assert!(
            outcome.contains(wrong) && outcome.contains("c0:s3:cut-before"),
            "{outcome}"
        );
        assert!(outcome.contains("drop-reply"), "{outcome}");
    }
}
