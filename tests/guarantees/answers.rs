//! The answer is stored as the contract says and is the same for everyone, also when it is empty.

use std::time::Duration;

use pgonce::scope::{Contract, Storage};
use pgonce::{Ack, Claim, Error, Failure, Intent};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent};
use rand::RngExt as _;
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

async fn answer<D: TestDriver>(world: &World<D>, request: &Intent, ack: &Ack) -> pgonce::Done {
    let run = world.once.run(request, |mut attempt| async move {
        effect(&mut attempt).await?;
        attempt.succeed(ack.clone()).await
    });
    run.await.unwrap()
}

async fn falsy_and_empty_answers_replay_equal_and_never_run_again<D: TestDriver>(world: World<D>) {
    let falsy = [
        json!(null),
        json!(0),
        json!(false),
        json!(""),
        json!([]),
        json!({}),
    ];
    let odd = [
        json!(0.1),
        json!(-0.5),
        json!(1e300),
        json!(5e-324),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(123456789.12345679),
        json!("null"),
        json!([null]),
        json!({"": ""}),
        json!("é😀\u{1}\"\\"),
        json!({"b": 1, "a": [1, {"z": 0, "y": null}]}),
    ];
    for value in falsy.iter().chain(&odd) {
        let request = intent(&format!("answer {value}"));
        let first = answer(&world, &request, &Ack::value(value).unwrap()).await;
        assert!(!first.replayed());
        for _ in 0..2 {
            let again = answer(&world, &request, &Ack::value("another").unwrap()).await;
            assert!(again.replayed(), "{value}");
            assert_eq!(again.ack(), first.ack(), "{value}");
            assert_eq!(again.ack().json(), Some(value));
        }
        let looked = world.once.answer(&request).await.unwrap().unwrap();
        assert_eq!(looked.ack(), first.ack());
        assert_eq!(world.see.effects(&request).await, 1);
    }
}

async fn every_floating_point_number_replays_to_the_last_bit<D: TestDriver>(world: World<D>) {
    let mut random = pgonce_tests::random();
    let numbers: Vec<f64> = (0..2000)
        .map(|_| f64::from_bits(random.random()))
        .filter(|n| n.is_finite() && *n != 0.0)
        .collect();
    let request = intent("numbers");
    let ack = Ack::value(&numbers).unwrap();
    let first = answer(&world, &request, &ack).await;
    let again = answer(&world, &request, &ack).await;
    let (first, again) = (
        first.read::<Vec<f64>>().unwrap(),
        again.read::<Vec<f64>>().unwrap(),
    );
    for (number, (first, again)) in numbers.iter().zip(first.iter().zip(&again)) {
        assert_eq!(number.to_bits(), first.to_bits());
        assert_eq!(
            number.to_bits(),
            again.to_bits(),
            "{number:e} came back as {again:e}"
        );
    }
}

/// What jsonb writes differently, or not at all: the first caller gets what every later one gets.
async fn the_first_answer_is_written_as_every_replay_is<D: TestDriver>(world: World<D>) {
    let deep = (0..127).fold(json!(1), |inner, _| json!([inner]));
    let numbers = [1e16, -0.0, 1e300, 5e-324, 1.0, 1e21, -1e-7, 0.0];
    let values = numbers.iter().map(|n| json!(n)).chain([
        deep,
        json!({"b": 1.0, "a": -0.0, "aa": [1e16]}),
        json!(u64::MAX),
    ]);
    for (n, value) in values.enumerate() {
        let request = intent(&format!("written {n}"));
        let ack = Ack::value(&value).unwrap();
        let first = answer(&world, &request, &ack).await;
        let again = answer(&world, &request, &ack).await;
        assert!(again.replayed());
        let written = |done: &pgonce::Done| done.ack().json().unwrap().to_string();
        assert_eq!(written(&first), written(&again), "{value}");
    }
}

/// SQL takes what jsonb takes; a document that the SDK cannot read is an error with a code, however it came there.
async fn an_answer_too_deep_to_be_read_is_an_error_and_nothing_is_done_again<D: TestDriver>(
    world: World<D>,
) {
    let request = intent("too deep");
    let store = format!(
        "begin; select finish('{}', '{}', {}, (repeat('[', 200) || '1' || repeat(']', 200))::jsonb); commit",
        request.scope(),
        request.key(),
        pgonce_tests::digest_of(&request)
    );
    world.see.run(&store).await;
    let run = world.once.run(&request, |mut attempt| async move {
        effect(&mut attempt).await?;
        attempt.succeed("done").await
    });
    assert_eq!(run.await.unwrap_err().code(), "22030");
    assert_eq!(world.see.effects(&request).await, 0);
}

async fn a_bare_status_and_a_reference_replay_as_they_were<D: TestDriver>(world: World<D>) {
    let acks = [
        Ack::status(),
        Ack::reference_to("order", 7),
        Ack::reference_to("", ""),
        Ack::value(&json!({"n": 1}))
            .unwrap()
            .and_reference("order", "x"),
    ];
    for (n, ack) in acks.iter().enumerate() {
        let request = intent(&format!("ack {n}"));
        assert_eq!(answer(&world, &request, ack).await.ack(), ack);
        let again = answer(&world, &request, &Ack::value("other").unwrap()).await;
        assert!(again.replayed());
        assert_eq!(again.ack(), ack);
        assert_eq!(world.see.effects(&request).await, 1);
    }
    // A status reads as null, which is not the same as the answer null.
    let status = answer(&world, &intent("ack 0"), &Ack::status()).await;
    assert_eq!(status.ack().json(), None);
    assert_eq!(status.read::<Value>().unwrap(), Value::Null);
}

async fn a_scope_keeps_of_an_answer_what_its_contract_says_and_no_more<D: TestDriver>(
    world: World<D>,
) {
    let whole = Ack::value("whole").unwrap().and_reference("order", "7");
    for (storage, json, reference) in [
        (Storage::Answer, Some(json!("whole")), Some(("order", "7"))),
        (Storage::Reference, None, Some(("order", "7"))),
        (Storage::Status, None, None),
        (Storage::Error, None, None),
    ] {
        let scope = format!("kept.{storage:?}");
        world
            .owner
            .define_scope(&scope, &Contract::keep(HOUR).storage(storage))
            .await
            .unwrap();
        for leased in [false, true] {
            let request = Intent::new(scope.clone(), format!("{leased}"), "request").unwrap();
            if leased {
                let Claim::Run(lease) = world.once.lease(&request, HOUR).await.unwrap() else {
                    panic!("fresh")
                };
                let _ = lease.succeed(whole.clone()).await.unwrap();
            } else {
                let _ = answer(&world, &request, &whole).await;
            }
            let again = answer(&world, &request, &whole).await;
            assert!(again.replayed());
            assert_eq!(
                again.ack().json(),
                json.as_ref(),
                "{storage:?} leased {leased}"
            );
            assert_eq!(
                again.ack().reference(),
                reference,
                "{storage:?} leased {leased}"
            );
        }
        let request = Intent::new(scope.clone(), "fails", "request").unwrap();
        let failure = Failure::permanent("no", "never")
            .with_answer(&json!({"why": 1}))
            .unwrap();
        let mut outcome = Vec::new();
        for _ in 0..3 {
            let failed = world
                .once
                .run::<(), _, _>(&request, async |_attempt| Err(failure.clone().into()))
                .await;
            let Err(Error::Refused(failure)) = failed else {
                panic!("{failed:?}")
            };
            outcome.push(failure);
        }
        let kept = matches!(storage, Storage::Answer | Storage::Error).then(|| json!({"why": 1}));
        assert_eq!(outcome[1].answer(), kept.as_ref(), "{storage:?}");
        assert_eq!((outcome[1].code(), outcome[1].message()), ("no", "never"));
        assert_eq!(outcome[1], outcome[2]);
    }
}

async fn a_large_answer_does_not_bloat_the_hot_row<D: TestDriver>(world: World<D>) {
    let request = intent("large");
    let mut random = pgonce_tests::random();
    let large: String = (0..20_000)
        .map(|_| char::from(random.random_range(b'a'..=b'z')))
        .collect();
    let _ = answer(&world, &request, &Ack::value(&large).unwrap()).await;
    assert_eq!(
        answer(&world, &request, &Ack::status())
            .await
            .read::<String>()
            .unwrap(),
        large
    );
    assert!(
        world
            .see
            .number("select pg_relation_size('pgonce.intent')")
            .await
            <= 8192
    );
}

for_each_driver!(
    falsy_and_empty_answers_replay_equal_and_never_run_again,
    every_floating_point_number_replays_to_the_last_bit,
    the_first_answer_is_written_as_every_replay_is,
    an_answer_too_deep_to_be_read_is_an_error_and_nothing_is_done_again,
    a_bare_status_and_a_reference_replay_as_they_were,
    a_scope_keeps_of_an_answer_what_its_contract_says_and_no_more,
    a_large_answer_does_not_bloat_the_hot_row,
);

/// A reference that cannot be kept: too long for its index, or with a character that PostgreSQL cannot store.
fn bad_references() -> [String; 2] {
    let mut random = rand::rng();
    let long = (0..600).map(|_| format!("{:032x}", random.random::<u128>()));
    let long = long.collect::<String>();
    [long, "a\0b".to_owned()]
}

async fn a_reference_that_cannot_be_kept_fails_no_work_that_is_done<D: TestDriver>(
    world: World<D>,
) {
    for (n, bad) in bad_references().into_iter().enumerate() {
        let ack = Ack::value(&7).unwrap().and_reference("order", bad);
        // Nothing has happened yet: the effect goes too.
        let request = intent(&format!("atomic {n}"));
        let run = world.once.run(&request, |mut attempt| {
            let ack = ack.clone();
            async move {
                effect(&mut attempt).await?;
                attempt.succeed(ack).await
            }
        });
        assert_eq!(run.await.unwrap_err().code(), "22023");
        assert_eq!(world.see.effects(&request).await, 0);
        // It may have happened outside.
        for transact in [false, true] {
            let request = intent(&format!("leased {n} {transact}"));
            let Claim::Run(lease) = world.once.lease(&request, HOUR).await.unwrap() else {
                panic!("not fresh")
            };
            let done = if transact {
                let ack = &ack;
                lease
                    .transact(|attempt| attempt.succeed(ack.clone()))
                    .await
                    .unwrap()
            } else {
                lease.succeed(ack.clone()).await.unwrap()
            };
            assert!(done.ack().reference().is_none(), "{n} {transact}");
            let again = world.once.answer(&request).await.unwrap().unwrap();
            assert!(again.ack().reference().is_none(), "{n} {transact}");
            assert_eq!(again.read::<i32>().unwrap(), 7);
        }
    }
}

for_each_driver!(a_reference_that_cannot_be_kept_fails_no_work_that_is_done);

/// It comes from a caller's header.
async fn no_command_fails_for_its_correlation_id<D: TestDriver>(world: World<D>) {
    for (n, id) in bad_references().into_iter().enumerate() {
        let request = intent(&format!("correlated {n}")).correlation(&*id);
        let kept = request.correlation_id().unwrap().to_owned();
        assert!(id.replace('\0', "").starts_with(&kept) && kept.len() <= 1000);
        assert!(!world.run(&request).await.unwrap().replayed());
        assert_eq!(world.see.record(&request, "correlation_id").await, kept);
    }
    let many = "é".repeat(999);
    let request = intent("on a character").correlation(many);
    assert_eq!(request.correlation_id().unwrap().len(), 1000);
}

for_each_driver!(no_command_fails_for_its_correlation_id);

#[tokio::test]
async fn a_long_reference_of_a_lease_is_left_out_in_sql_too() {
    let world = World::<pgonce::driver::tokio_postgres::TokioPostgres>::new().await;
    let see = &world.see;
    let [long, _] = bad_references();
    let long = format!("$long${long}$long$");
    let claim = "select pgonce.claim('s', 'atomic', '\\x01')";
    see.run(&format!("begin; {claim}")).await;
    let succeed = format!("select pgonce.succeed('s', 'atomic', '\\x01', 1, '7', 'order', {long})");
    assert_eq!(see.code(&succeed).await, "22023");
    see.run("rollback").await;
    for column in ["p_ref_id", "p_correlation"] {
        let claim = format!("select fence from pgonce.claim('s', '{column}', '\\x01', '1 minute')");
        let fence = see.number(&claim).await;
        see.run(&format!(
            "select pgonce.succeed('s', '{column}', '\\x01', {fence}, '7', {column} => {long})"
        ))
        .await;
    }
    let kept = "select count(*) from pgonce.intent where status = 'succeeded' and answer = '7' and coalesce(ref_id, correlation_id) is null";
    assert_eq!(see.number(kept).await, 2);
}

#[tokio::test]
async fn an_effect_whose_reference_is_too_long_to_keep_has_happened() {
    let world = World::<pgonce::driver::tokio_postgres::TokioPostgres>::new().await;
    let see = &world.see;
    see.run("create schema shop; grant usage, create on schema shop to world_app; \
             create function shop.find(p_scope text, p_key text, p_tenant text) returns table (answer jsonb, ref_type text, ref_id text) \
             language sql security definer set search_path = pg_catalog, pg_temp \
             as $$ select '7'::jsonb, 'order', (select string_agg(md5(i::text), '') from generate_series(1, 300) i) $$; \
             alter function shop.find owner to world_app; select pgonce.define_scope('s', '1 day', p_probe => 'shop.find')")
        .await;
    see.run("select pgonce.claim('s', 'k', '\\x01', '1 minute'); select pgonce._move_clock('2 minutes')")
        .await;
    let recovered = world.owner.recovery().run_once().await.unwrap();
    assert_eq!(recovered.succeeded, 1);
    let claim = "select outcome || ' ' || answer from pgonce.claim('s', 'k', '\\x01')";
    assert_eq!(see.text(claim).await, "replay 7");
    let why = see
        .text("select reason from pgonce.operator_act where act = 'recover'")
        .await;
    assert!(why.ends_with("9600 bytes is too long to keep"), "{why}");
}
