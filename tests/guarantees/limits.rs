//! Everything has a limit: what is at it passes, what is one above is refused with an error of its own, and nothing is half done.

use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::Message;
use pgonce::scope::Contract;
use pgonce::{Ack, Attempt, Claim, Done, Error, Event, Failure, Intent};
use pgonce_tests::{TestDriver, World, effect, for_each_driver, intent, work};

const MINUTE: Duration = Duration::from_secs(60);

/// A text that is so long as JSON.
fn json_of(bytes: usize) -> String {
    "x".repeat(bytes - 2)
}

async fn run<D: TestDriver>(
    world: &World<D>,
    request: &Intent,
    bytes: usize,
) -> Result<Done, Error> {
    let answer = Ack::value(&json_of(bytes))?;
    let run = world.once.run(request, |mut attempt| {
        let answer = answer.clone();
        async move {
            effect(&mut attempt).await?;
            attempt.succeed(answer).await
        }
    });
    run.await
}

async fn an_answer_above_the_limit_of_its_contract_rolls_everything_back<D: TestDriver>(
    world: World<D>,
) {
    // The one in the middle is above what the SDK takes for small, whose retention alone it remembers.
    for (scope, limit) in [
        ("nobody defined it", 1 << 20),
        ("middle", 20_000),
        ("small", 1000),
    ] {
        if limit < 1 << 20 {
            let contract = Contract::keep(60 * MINUTE).max_answer(u32::try_from(limit).unwrap());
            world.owner.define_scope(scope, &contract).await.unwrap();
        }
        // Twice, since the second time the SDK remembers the contract.
        for n in 0..2 {
            let fits = Intent::new(scope, format!("fits {n}"), &1).unwrap();
            assert!(!run(&world, &fits, limit).await.unwrap().replayed());
            assert!(run(&world, &fits, limit).await.unwrap().replayed());
            let above = Intent::new(scope, format!("above {n}"), &1).unwrap();
            let error = run(&world, &above, limit + 1).await.unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error:?}");
            assert_eq!(error.code(), "P4040");
            assert_eq!(world.see.effects(&above).await, 0);
            // The key is free.
            assert!(!run(&world, &above, limit).await.unwrap().replayed());
            assert_eq!(world.see.effects(&above).await, 1);
        }
        let leased = Intent::new(scope, "leased", &1).unwrap();
        let Claim::Run(lease) = world.once.lease(&leased, MINUTE).await.unwrap() else {
            panic!("fresh");
        };
        let above = Ack::value(&json_of(limit + 1)).unwrap();
        assert_eq!(lease.record(&above).await.unwrap_err().code(), "P4040");
        // It is still held, and takes an answer that fits.
        let fits = Ack::value(&json_of(limit)).unwrap();
        let _ = lease.succeed(fits).await.unwrap();
    }
    let by_sql = "begin; select pgonce.claim('small', 'sql', '\\x01'); \
        select pgonce.succeed('small', 'sql', '\\x01', 1, to_jsonb(repeat('x', 999))); commit";
    assert_eq!(world.see.code(by_sql).await, "P4040");
    world.see.run("rollback").await;
    let failure = "select pgonce.fail('small', 'sql', '\\x01', 1, false, 'no', 'm', to_jsonb(repeat('x', 999)))";
    assert_eq!(world.see.code(failure).await, "P4040");
    let by_hand = "select pgonce.claim('small', 'hand', '\\x01', '1 minute'); \
        select pgonce.intervene('settle', 'small', 'hand', 'ticket 7', p_answer => to_jsonb(repeat('x', 999)), p_force => true)";
    assert_eq!(world.see.code(by_hand).await, "P4040");
    let kept = "select count(*) from pgonce.intent where octet_length(answer::text) > 1000 and scope = 'small'";
    assert_eq!(world.see.number(kept).await, 0);
}

async fn a_failure_is_recorded_whatever_its_answer_weighs<D: TestDriver>(world: World<D>) {
    let small = Contract::keep(60 * MINUTE).max_answer(100);
    world.owner.define_scope("small", &small).await.unwrap();
    let failure = || {
        let failure = Failure::permanent("no", "never");
        failure.with_answer(&json_of(101)).unwrap()
    };
    let named = |key: &str| Intent::new("small", key, &1).unwrap();
    for key in ["run", "run leased", "attempt", "lease"] {
        let request = named(key);
        match key {
            "run" => {
                let ran = world
                    .once
                    .run(&request, |_| async { Err::<Done, _>(failure().into()) });
                assert!(matches!(ran.await, Err(Error::Refused(_))));
            }
            "run leased" => {
                let run = world
                    .once
                    .run_leased(&request, |_| async { Err::<Done, _>(failure().into()) });
                assert!(matches!(run.await, Err(Error::Refused(_))));
            }
            "attempt" => match world.once.claim(&request).await.unwrap() {
                Claim::Run(attempt) => attempt.fail(failure()).await.unwrap(),
                other => panic!("{other:?}"),
            },
            _ => match world.once.lease(&request, MINUTE).await.unwrap() {
                Claim::Run(lease) => lease.fail(failure()).await.unwrap(),
                other => panic!("{other:?}"),
            },
        }
        let status = world
            .see
            .record(&request, "status::text || coalesce(answer::text, '')");
        assert_eq!(status.await, "failed_final", "{key}");
        let again = world.once.run(&request, work).await.unwrap_err();
        assert!(matches!(again, Error::Refused(_)), "{key}: {again:?}");
    }
}

async fn a_command_of_one_statement_has_the_limit_of_its_contract<D: TestDriver>(world: World<D>) {
    // Three times: the SDK remembers the contract from the first.
    for (n, bytes) in [(0, 10), (1, 300_000), (2, (1 << 20) + 1)] {
        let request = intent(&format!("key {n}"));
        let sql = format!(
            "insert into effects (tenant, scope, key, note) select '', 'orders.create', $1, 'one' returning repeat('x', {bytes}) as note"
        );
        let done = D::execute(&world.once, &request, &sql, request.key()).await;
        assert_eq!(done.is_ok(), n < 2, "{done:?}");
        if let Err(error) = done {
            assert_eq!(error.code(), "P4040");
        }
        assert_eq!(world.see.effects(&request).await, i64::from(n < 2));
    }
}

async fn a_tenant_has_no_more_keys_than_its_contract_allows<D: TestDriver>(world: World<D>) {
    let few = Contract::keep(60 * MINUTE).max_keys(2);
    world.owner.define_scope("few", &few).await.unwrap();
    let named = |key: &str, tenant: &str| {
        let intent = Intent::new("few", key, &1).unwrap();
        intent.tenant(tenant.to_owned()).unwrap()
    };
    for tenant in ["acme", "other"] {
        let _ = world.once.run(&named("1", tenant), work).await.unwrap();
        let Claim::Run(lease) = world.once.lease(&named("2", tenant), MINUTE).await.unwrap() else {
            panic!("fresh");
        };
        let third = named("3", tenant);
        let error = world.once.run(&third, work).await.unwrap_err();
        assert_eq!(error.code(), "P4044", "{error}");
        assert_eq!(world.see.effects(&third).await, 0);
        let error = world.once.lease(&third, MINUTE).await.unwrap_err();
        assert_eq!(error.code(), "P4044", "{error}");
        // Those that it has are answered as ever.
        let again = world.once.run(&named("1", tenant), work).await.unwrap();
        assert!(again.replayed());
        let _ = lease.succeed(Ack::status()).await.unwrap();
    }
    world
        .see
        .run("delete from pgonce.intent where tenant = 'acme' and key = '1'")
        .await;
    let third = world.once.run(&named("3", "acme"), work).await.unwrap();
    assert!(!third.replayed());
}

/// Commands count what is committed, and do not wait for each other: those that overlap pass together, and no others.
#[tokio::test]
async fn keys_above_the_limit_are_those_of_transactions_that_overlap() {
    let world = World::<TokioPostgres>::new().await;
    let few = Contract::keep(60 * MINUTE).max_keys(3);
    world.owner.define_scope("few", &few).await.unwrap();
    let command = |key: &str| {
        format!(
            "select pgonce.claim('few', '{key}', '\\x01', p_tenant => 'acme'); \
             select pgonce.succeed('few', '{key}', '\\x01', 1, p_tenant => 'acme')"
        )
    };
    let see = &world.see;
    for key in ["1", "2"] {
        see.run(&format!("begin; {}; commit", command(key))).await;
    }
    let (late, mut open) = (world.observer().await, Vec::new());
    late.run("begin; select 1").await;
    for n in 3..7 {
        let other = world.observer().await;
        other
            .run(&format!("begin; {}", command(&n.to_string())))
            .await;
        open.push(other);
    }
    for other in &open {
        other.run("commit").await;
    }
    let keys = "select count(*) from pgonce.intent where scope = 'few'";
    assert_eq!(see.number(keys).await, 3 + 3);
    // One that was open too, and counted when they had committed; and everything after.
    assert_eq!(late.code(&command("7")).await, "P4044");
    let lease = "select pgonce.claim('few', '8', '\\x01', '1 minute', p_tenant => 'acme')";
    assert_eq!(see.code(lease).await, "P4044");
    // A transaction counts its own.
    see.run("delete from pgonce.intent where key in ('1', '2', '3', '4')")
        .await;
    let two = format!("begin; {}; {}", command("9"), command("10"));
    assert_eq!(see.code(&two).await, "P4044");
}

async fn events_and_batches_above_their_limits_are_refused_whole<D: TestDriver>(world: World<D>) {
    let publish = async |key: &str, event: Event| {
        let (event, request) = (&event, intent(key));
        let run = world.once.run(&request, async |mut tx: Attempt<D>| {
            effect(&mut tx).await?;
            tx.publish(event.clone()).await?;
            tx.succeed(Ack::status()).await
        });
        run.await.map(drop).map_err(|error| error.code().to_owned())
    };
    let event = || Event::new("t", "made").subject("s");
    let payload = |bytes: usize| event().payload(&json_of(bytes)).unwrap();
    assert_eq!(publish("payload", payload(1 << 20)).await, Ok(()));
    let above = publish("payload above", payload((1 << 20) + 1)).await;
    assert_eq!(above, Err("P4041".to_owned()));
    // {"big": "..."}, as PostgreSQL prints it; the event counts it without the space.
    let headers = |bytes: usize| event().header("big", "x".repeat(bytes - 10));
    assert_eq!(publish("headers", headers(65_535)).await, Ok(()));
    let above = publish("headers above", headers(65_536)).await;
    assert_eq!(above, Err("P4042".to_owned()));
    for key in ["payload above", "headers above"] {
        assert_eq!(world.see.effects(&intent(key)).await, 0, "{key}");
    }
    // As text: 2 bytes beside the letters, and 11 with a name of three letters.
    for (argument, code) in [
        ("to_jsonb(repeat('x', 1048574)), p_headers => '{}'", ""),
        ("to_jsonb(repeat('x', 1048575)), p_headers => '{}'", "P4041"),
        (
            "'{}', p_headers => jsonb_build_object('big', repeat('x', 65525))",
            "",
        ),
        (
            "'{}', p_headers => jsonb_build_object('big', repeat('x', 65526))",
            "P4042",
        ),
    ] {
        let sql = format!("select pgonce.publish('t', 'made', 's', {argument})");
        assert_eq!(world.see.code(&sql).await, code, "{argument}");
    }
    assert_eq!(
        world.see.number("select count(*) from pgonce.outbox").await,
        4
    );

    let accept = |n: u32, code: &'static str| {
        let sql = format!(
            "select count(*) from pgonce.accept_batch('c', 's', array(select n::text from generate_series(1, {n}) n))"
        );
        let see = &world.see;
        async move { assert_eq!(see.code(&sql).await, code, "{n}") }
    };
    accept(10_001, "P4043").await;
    let none = "select count(*) from pgonce.inbox_marker";
    assert_eq!(world.see.number(none).await, 0);
    accept(10_000, "").await;
    let batch = intent("batch");
    let messages: Vec<Message> = (0..10_001)
        .map(|n| Message::new(n.to_string(), Vec::new()))
        .collect();
    let run = world.once.run(&batch, async |mut tx: Attempt<D>| {
        effect(&mut tx).await?;
        tx.accept_batch("other", "s", &messages).await?;
        tx.succeed(Ack::status()).await
    });
    assert_eq!(run.await.unwrap_err().code(), "P4043");
    assert_eq!(world.see.effects(&batch).await, 0);
}

/// Maximum size of a call: a worker of tokio has a stack of 2 MiB, and a build without optimization copies a future for each call
/// that it passes through.
const MAX_FUTURE: usize = 64 * 1024;

async fn a_call_is_small_enough_for_the_stack_of_a_worker<D: TestDriver>(world: World<D>) {
    let request = intent("a");
    let run = world.once.run(&request, work);
    let leased = world
        .once
        .run_leased(&request, async |lease| lease.succeed(Ack::status()).await);
    for (name, size) in [
        ("run", size_of_val(&run)),
        ("run_leased", size_of_val(&leased)),
    ] {
        assert!(size <= MAX_FUTURE, "{name} takes {size} bytes");
    }
    let _ = run.await.unwrap();
    assert!(leased.await.unwrap().replayed());
}

for_each_driver!(
    a_call_is_small_enough_for_the_stack_of_a_worker,
    an_answer_above_the_limit_of_its_contract_rolls_everything_back,
    a_failure_is_recorded_whatever_its_answer_weighs,
    a_command_of_one_statement_has_the_limit_of_its_contract,
    a_tenant_has_no_more_keys_than_its_contract_allows,
    events_and_batches_above_their_limits_are_refused_whole
);
