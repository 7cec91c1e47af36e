//! What a hot call costs: a function in SQL that is not inlined is read and planned anew by each call, which takes longer than its work.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::World;

const PREPARE: &str = "
    prepare claim(text, text, bytea) as select fence from pgonce.claim($1, $2, $3);
    prepare lease(text, text, bytea, interval) as select fence from pgonce.claim($1, $2, $3, $4);
    prepare guard(text, text, bigint) as select pgonce.guard($1, $2, $3);
    prepare heartbeat(text, text, bigint, interval) as select pgonce.heartbeat($1, $2, $3, $4);
    prepare succeed(text, text, bytea, bigint, jsonb) as select pgonce.succeed($1, $2, $3, $4, $5);
    prepare fail(text, text, bytea, bigint, boolean, text, text) as select pgonce.fail($1, $2, $3, $4, $5, $6, $7);
    prepare publish(text, text, text, jsonb) as select pgonce.publish($1, $2, $3, $4);
    prepare accept(text, text, text) as select pgonce.accept($1, $2, $3);
    prepare enqueue(text, jsonb, text) as select id from pgonce.enqueue($1, $2, p_key => $3);
    prepare jobs(text[], text, interval, integer) as
        select jsonb_agg(jsonb_build_object('id', id, 'fence', fence))::text from pgonce.claim_jobs($1, $2, $3, $4);
    prepare finish(jsonb) as select pgonce.finish_jobs($1);
    prepare post(text, text, jsonb) as select made_now from pgonce.ledger_post($1, $2, $3)";

#[tokio::test]
async fn no_hot_call_plans_a_function_in_sql_again() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run("select pgonce.define_scope('s', '7 days'), pgonce.ledger_open('a', 'EUR', 'debit'), pgonce.ledger_open('b', 'EUR', 'credit')").await;
    see.run(PREPARE).await;
    // The plans of every later call, with which constants are not known.
    see.run(
        "begin; set local track_functions = 'all'; set local plan_cache_mode = force_generic_plan",
    )
    .await;
    see.run("execute claim('s', 'atomic', '\\x01'); execute succeed('s', 'atomic', '\\x01', 1, '{}'); execute claim('s', 'atomic', '\\x01')").await;
    let fence = see
        .number("execute lease('s', 'leased', '\\x01', '30 s')")
        .await;
    see.run(&format!(
        "execute guard('s', 'leased', {fence}); execute heartbeat('s', 'leased', {fence}, '30 s');
         execute succeed('s', 'leased', '\\x01', {fence}, '{{}}')"
    ))
    .await;
    let fence = see
        .number("execute lease('s', 'failed', '\\x01', '30 s')")
        .await;
    see.run(&format!(
        "execute fail('s', 'failed', '\\x01', {fence}, true, 'x', 'y')"
    ))
    .await;
    see.run("execute publish('t', 'made', 's', '{}'); execute accept('c', 's', 'm'); execute enqueue('q', '{}', null); execute enqueue('q', '{}', 'k')").await;
    let jobs = see.text("execute jobs('{q}', 'o', '30 s', 10)").await;
    see.run(&format!("execute finish('{jobs}')")).await;
    see.run("execute post('s', 'o', '[{\"account\": \"a\", \"debit\": 5}, {\"account\": \"b\", \"credit\": 5}]')").await;
    let called = |language: &str| {
        format!(
            "select coalesce(string_agg(p.proname, ' ' order by p.proname), '') from pg_stat_xact_user_functions f
               join pg_proc p on p.oid = f.funcid join pg_language l on l.oid = p.prolang where l.lanname = '{language}'"
        )
    };
    let counted = see.text(&called("plpgsql")).await;
    assert!(counted.contains("_succeed_lease"), "{counted}");
    assert_eq!(see.text(&called("sql")).await, "");
    see.run("rollback").await;
}
