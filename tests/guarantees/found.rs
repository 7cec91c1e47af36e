//! Anything is found by any id, by an index where one leads there; what may have happened is never denied.

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce_tests::{Observer, World};

const STORED: &str = "order-7#0123456789abcdef0123456789abcdef";

async fn found(see: &Observer, id: &str, part: &str) -> String {
    let find = format!(
        "select coalesce(string_agg(what || ' by ' || found_as || ' ' || place || '/' || id, ', ' order by what, id), '') \
         from pgonce.find('{id}', '{part}')"
    );
    see.text(&find).await
}

/// Tens of thousands of intents, so that a plan without an index would read them all.
async fn filled() -> World<TokioPostgres> {
    let world = World::new().await;
    world
        .see
        .run(&format!(
            "insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint, ref_type, ref_id, correlation_id)
             select 1, now(), now() + interval '1 day', 1, 'succeeded', 't' || n % 3, 's' || n % 5, 'k-' || n, '\\x01', 'order', 'o-' || n, 'c-' || n
               from generate_series(1, 20000) n;
             insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             values (1, now(), now() + interval '1 day', 1, 'succeeded', '', 'web', '{STORED}', '\\x0102030405060708');
             insert into pgonce.job (id, created_at, priority, tenant, queue, unique_key) select nextval('pgonce.job_seq'), now(), 0, '', 'bulk', 'u-' || n from generate_series(1, 20000) n;
             insert into pgonce.inbox_message (seq, tenant, consumer, source, message_id, hash, size, status, received_at, holds_key, headers, payload)
             select n, 't' || n % 3, 'bulk', 's' || n % 5, 'm-' || n, '\\x01', 1, 'processed', now(), false, '{{}}', '\\x01' from generate_series(1, 20000) n;
             analyze pgonce.intent, pgonce.job, pgonce.inbox_message"
        ))
        .await;
    world
}

#[tokio::test]
async fn every_form_of_an_id_leads_to_what_it_names() {
    let world = filled().await;
    let see = &world.see;
    for (id, expected) in [
        ("k-77", "intent by key s2/k-77"),
        (STORED, &*format!("intent by key web/{STORED}")),
        ("order-7", &*format!("intent by client key web/{STORED}")),
        ("c-9", "intent by correlation s4/k-9"),
        ("o-55", "intent by reference s0/k-55"),
        ("order/o-55", "intent by reference s0/k-55"),
        ("invoice/o-55", ""),
        ("o-5", "intent by reference s0/k-5"),
        ("nothing", ""),
    ] {
        assert_eq!(found(see, id, "intents").await, expected, "{id}");
    }
    // As the log of the gateway hashes a client's key.
    for (key, expected) in [("order-7", STORED), ("k-77", "k-77")] {
        let hash = format!("select encode(substr(sha256('{key}'), 1, 8), 'hex')");
        let by_hash = found(see, &see.text(&hash).await, "all_intents").await;
        assert!(
            by_hash.starts_with("intent by hashed key") && by_hash.ends_with(expected),
            "{by_hash}"
        );
    }
    let by_fingerprint = found(see, "0102030405060708", "all_intents").await;
    assert_eq!(
        by_fingerprint,
        format!("intent by fingerprint web/{STORED}")
    );

    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let publish = format!(
        "select pgonce.publish('orders', 'made', 'cart-1', '{{}}', p_headers => '{{\"traceparent\": \"00-{trace}-00f067aa0ba902b7-01\"}}')"
    );
    let message = see.text(&publish).await;
    for (id, as_what) in [
        ("cart-1", "subject"),
        (&*message, "message"),
        (trace, "trace"),
    ] {
        let expected = format!("event by {as_what} orders/{message}");
        assert_eq!(found(see, id, "all_events").await, expected);
    }
    let number = see.text("select max(seq) from pgonce.outbox").await;
    let expected = format!("event by number orders/{message}");
    assert_eq!(found(see, &number, "events").await, expected);
    see.run("select pgonce.accept('billing', 'hook', 'evt-1', p_tenant => 'acme')")
        .await;
    let expected = "message by message billing/evt-1";
    assert_eq!(found(see, "evt-1", "messages").await, expected);
    // Stored ones: the id by its index, key and trace by reading.
    see.run(&format!(
        "select pgonce.store_message('stock', 'hook', 'evt-2', '\\x01', 'cart-2', p_headers => '{{\"traceparent\": \"00-{trace}-00f067aa0ba902b7-01\"}}')"
    ))
    .await;
    assert_eq!(
        found(see, "m-77", "messages").await,
        "stored message by message bulk/m-77"
    );
    let by_id = found(see, "evt-2", "messages").await;
    assert_eq!(
        by_id,
        "message by message stock/evt-2, stored message by message stock/evt-2"
    );
    for (id, as_what) in [
        ("cart-2", "key"),
        (trace, "trace"),
        ("00f067aa0ba902b7", "trace"),
    ] {
        let expected = format!("stored message by {as_what} stock/evt-2");
        assert_eq!(found(see, id, "all_messages").await, expected, "{id}");
    }
    see.run("select pgonce.enqueue('mail', '{}', 'welcome-7', 'customer-7', p_group => 'batch-7')")
        .await;
    for (id, as_what) in [
        ("welcome-7", "unique key"),
        ("customer-7", "key"),
        ("batch-7", "group"),
    ] {
        let jobs = found(see, id, "jobs").await;
        assert!(
            jobs.starts_with(&format!("job by {as_what} mail/")),
            "{jobs}"
        );
    }
    for bad in [
        "select pgonce.find('x', 'nowhere')",
        "select pgonce.find('', 'intents')",
    ] {
        assert_eq!(see.code(bad).await, "22023", "{bad}");
    }
}

#[tokio::test]
async fn calls_to_providers_are_found_and_in_the_timeline() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    for tenant in ["", "acme"] {
        let claim = format!(
            "select fence from pgonce.claim('pay', 'k', '\\x01', '1 minute', p_tenant => '{tenant}')"
        );
        let fence = see.number(&claim).await;
        see.run(&format!(
            "select pgonce.external_send('pay', 'k', {fence}, 'charge', 'bank', '\\x01', p_tenant => '{tenant}'); \
             select pgonce.external_record('pay', 'k', {fence}, 'charge', 'unknown', 'ch{tenant}_7', p_tenant => '{tenant}'); \
             select pgonce.external_observe('bank', 'confirmed', p_reference => 'ch{tenant}_7', p_event_id => 'evt_1{tenant}', p_tenant => '{tenant}'); \
             select pgonce.external_observe('bank', 'failed', p_reference => 'ch{tenant}_8', p_event_id => 'evt_2{tenant}', p_tenant => '{tenant}')"
        ))
        .await;
    }
    let effect = "select effect_key::text from pgonce.external_call where tenant = 'acme'";
    let effect = see.text(effect).await;
    for (id, expected) in [
        ("chacme_7", "external call by reference pay/k"),
        (&*effect, "external call by effect key pay/k"),
        (
            "k",
            "external call by key pay/k, external call by key pay/k",
        ),
        ("evt_1acme", "provider event by event bank/evt_1acme"),
        ("chacme_8", "provider event by reference bank/evt_2acme"),
        ("chacme_9", ""),
    ] {
        assert_eq!(found(see, id, "calls").await, expected, "{id}");
    }
    let history = "select string_agg(concat_ws(' ', what, who, detail), '; ') from pgonce._history('acme', 'pay', 'k') where what like 'call%'";
    assert_eq!(
        see.text(history).await,
        format!(
            "call charge bank sent once, effect key {effect}; \
             call charge decided bank confirmed, by event evt_1acme, reference chacme_7"
        )
    );
    see.run(
        "insert into pgonce.external_call (effect_key, fence, requested_at, status, decides, tenant, scope, key, step, provider, digest, reference) \
         select gen_random_uuid(), 2, now(), 'requested', false, 't' || n % 3, 'pay', n::text, 'charge', 'p' || n % 2, '', 'r' || n \
         from generate_series(1, 5000) n; \
         insert into pgonce.external_event (seen_at, outcome, tenant, provider, event_id, reference) \
         select now(), 'confirmed', 't' || n % 3, 'p' || n % 2, 'e' || n, 'w' || n from generate_series(1, 5000) n; \
         analyze pgonce.external_call; analyze pgonce.external_event",
    )
    .await;
    see.run("begin").await;
    let looks = format!(
        "select count(*) from unnest(array['r77', 'e78', 'w79', '80', '{effect}']) id cross join lateral pgonce.find(id, 'calls')"
    );
    assert_eq!(see.number(&looks).await, 5);
    let read = "select coalesce(string_agg(relname || ' ' || seq_tup_read, ', '), '') from pg_stat_xact_user_tables \
                where relname in ('external_call', 'external_event') and seq_tup_read > 0";
    assert_eq!(see.text(read).await, "");
    see.run("rollback").await;
}

#[tokio::test]
async fn looking_up_reads_no_table_whole() {
    let world = filled().await;
    let see = &world.see;
    let looks = "select count(*) from unnest(array['k-77', 'order-7', 'c-9', 'o-55', 'order/o-55', 'u-3', 'm-3', '17', 'nothing']) id \
         cross join unnest(array['intents', 'events', 'messages', 'jobs']) part cross join lateral pgonce.find(id, part)";
    see.run("begin").await;
    assert!(see.number(looks).await > 0);
    let read = "select coalesce(string_agg(relname || ' ' || seq_scan, ', '), '') from pg_stat_xact_user_tables \
                where relname in ('intent', 'job', 'job_live', 'outbox_1', 'inbox_message') and seq_scan > 0 and n_tup_ins = 0 and seq_tup_read > 1000";
    assert_eq!(see.text(read).await, "");
    see.run("rollback").await;
}

#[tokio::test]
async fn what_is_under_way_or_was_removed_by_an_operator_is_not_denied() {
    let world = World::<TokioPostgres>::new().await;
    let (see, other) = (&world.see, world.observer().await);
    see.run("select pgonce.define_scope('pay', '1 day')").await;
    other
        .run("begin; select pgonce.claim('pay', 'k', '\\x01')")
        .await;
    assert_eq!(found(see, "k", "intents").await, "attempt by key pay/k");
    other
        .run("select pgonce.succeed('pay', 'k', '\\x01', 1); commit")
        .await;
    assert_eq!(found(see, "k", "intents").await, "intent by key pay/k");
    see.run("select pgonce.intervene('evict', 'pay', 'k', 'ticket 7', true)")
        .await;
    assert_eq!(
        found(see, "k", "intents").await,
        "operator act by key pay/k"
    );
}

#[tokio::test]
async fn the_timeline_of_an_intent_has_its_attempts_acts_events_and_deliveries() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    see.run(
        "select pgonce.define_scope('pay', '1 day'); select pgonce.create_subscription('billing')",
    )
    .await;
    let claim = "select fence from pgonce.claim('pay', 'k', '\\x01', '1 minute', 'worker-7')";
    let fence = see.number(claim).await;
    see.run(&format!(
        "select pgonce.fail('pay', 'k', '\\x01', {fence}, true, 'down', 'no route')"
    ))
    .await;
    see.run(
        "set application_name = 'web-1'; begin; select pgonce.claim('pay', 'k', '\\x01'); select pgonce.publish('orders', 'made', 'o-1', '{}')",
    )
    .await;
    let fence = see
        .number("select pgonce._next_fence(fence, false) from pgonce.intent")
        .await;
    see.run(&format!(
        "select pgonce.succeed('pay', 'k', '\\x01', {fence}, '1', 'order', '7'); commit; \
         select pgonce.accept('stock', 'outbox', (select message_id::text from pgonce.outbox))"
    ))
    .await;
    let history = "select string_agg(concat_ws(' ', what, split_part(who, ':', 1), split_part(detail, ' ', 1)), ', ') from pgonce._history('', 'pay', 'k')";
    assert_eq!(
        see.text(history).await,
        "attempt 1 worker-7 failed_retryable, attempt 2 web-1 succeeded, reference order/7, event orders made, \
         delivery billing waiting, consumed stock from"
    );
}

#[tokio::test]
async fn the_timeline_of_leased_work_says_that_earlier_transactions_are_not_looked_at() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let fence = see
        .number("select fence from pgonce.claim('pay', 'k', '\\x01', '1 minute', 'worker-7')")
        .await;
    see.run("select pgonce.publish('orders', 'early', 'o-1', '{}')")
        .await;
    see.run(&format!(
        "begin; select pgonce.publish('orders', 'late', 'o-1', '{{}}'); select pgonce.succeed('pay', 'k', '\\x01', {fence}); commit"
    ))
    .await;
    let history = "select string_agg(concat_ws(' ', what, who, split_part(detail, ' ', 1)), ', ') from pgonce._history('', 'pay', 'k')";
    assert_eq!(
        see.text(history).await,
        "attempt 1 worker-7 succeeded, events only, event orders late"
    );
}

#[tokio::test]
async fn a_client_key_of_many_principals_is_found_for_each_until_the_look_up_ends() {
    let world = World::<TokioPostgres>::new().await;
    let see = &world.see;
    let found = "select count(*) from pgonce.find('same', 'intents') where found_as = 'client key'";
    for (principals, expected) in [("1, 60", 60), ("61, 130", 100)] {
        see.run(&format!(
            "insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint) \
             select 1, now(), now() + interval '1 day', 1, 'succeeded', '', 'web', 'same#' || md5(n::text), '\\x01' \
             from generate_series({principals}) n"
        ))
        .await;
        assert_eq!(see.number(found).await, expected);
    }
}
