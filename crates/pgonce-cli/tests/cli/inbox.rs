//! Stored messages and projections, as an operator meets them.

use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn stored_messages_are_listed_shown_retried_skipped_and_replayed() {
    let fixture = Fixture::installed().await;
    assert_eq!(
        fixture.ok(&["inbox", "list"]),
        "Nothing waits in the inbox.\n"
    );
    fixture
        .sql(
            "select pgonce.store_message('billing', 'hook', 'e' || i, 'payload', 'k', p_outcome => o, p_code => 'no', p_reason => 'why not') \
             from (values (1, 'poison'), (2, 'receive'), (3, 'poison')) v (i, o)",
        )
        .await;
    let backlog = fixture.json(&["inbox", "list"]);
    assert_eq!(
        (&backlog[0]["poison"], &backlog[0]["held"]),
        (&json!(2), &json!(2))
    );
    let listed = fixture.json(&["inbox", "list", "billing", "--status", "failed_final"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let seq = |n: usize| listed[n]["seq"].to_string();
    let shown = fixture.json(&["inbox", "show", "billing", &seq(0)]);
    assert_eq!(
        (&shown["payload"], &shown["behind"]),
        (&json!("payload"), &json!(2))
    );
    assert!(
        fixture
            .ok(&["inbox", "show", "billing", &seq(0)])
            .contains("why not")
    );

    let number = seq(0);
    let skip = ["inbox", "skip", "billing", &number, "--reason", "not ours"];
    assert_eq!(fixture.run(&skip).code, 11);
    assert_eq!(
        fixture.json(&[&skip[..], &["--dry-run"]].concat())["count"],
        1
    );
    let run = fixture.ok(&[&skip[..], &["--yes"]].concat());
    assert_eq!(run, "1 message is skipped\n");
    assert_eq!(
        fixture
            .run(&[
                "inbox", "skip", "billing", &number, "--reason", "again", "--yes"
            ])
            .code,
        7
    );
    let shown = fixture.json(&["inbox", "show", "billing", &seq(0)]);
    assert_eq!(
        (&shown["acts"][0]["act"], &shown["acts"][0]["reason"]),
        (&json!("skip"), &json!("not ours"))
    );
    let run = fixture.json(&["inbox", "retry", "billing", "--all", "--reason", "fixed"]);
    assert_eq!(run, json!({"messages": 1}));
    assert_eq!(fixture.run(&["inbox", "retry", "billing", "999"]).code, 7);
    assert_eq!(fixture.run(&["inbox", "show", "billing", "999"]).code, 7);
    for args in [&["list", "nobody"][..], &["retry", "nobody", "--all"]] {
        let run = fixture.run(&[&["inbox"], args].concat());
        assert_eq!(run.code, 7, "{args:?}: {run:?}");
    }

    for _ in 0..2 {
        fixture
            .sql(
                "select pgonce.finish_messages('billing', (select jsonb_agg(to_jsonb(m) - 'payload') \
                 from pgonce.claim_messages('billing', 'me', '1 minute', 9) m))",
            )
            .await;
    }
    let run = fixture.ok(&[
        "inbox",
        "replay",
        "billing",
        "--into",
        "audit",
        "--reason",
        "a new reader",
    ]);
    assert_eq!(run, "2 messages are to be applied again\n");
    let waiting = fixture.json(&["inbox", "list", "audit"]);
    assert_eq!(waiting.as_array().unwrap().len(), 2);
    for args in [
        &["inbox", "replay", "billing", "--reason", "where to?"][..],
        &["inbox", "skip", "billing", "1"],
        &["inbox", "retry", "billing"],
    ] {
        assert_eq!(fixture.run(args).code, 2, "{args:?}");
    }
}

#[tokio::test]
async fn projections_are_listed_verified_and_rebuilt() {
    let fixture = Fixture::installed().await;
    assert_eq!(
        fixture.ok(&["projection", "status"]),
        "No projection is defined here.\n"
    );
    assert_eq!(fixture.run(&["projection", "rebuild", "balance"]).code, 7);
    fixture
        .sql(
            "create table balance (account text primary key, amount bigint not null);
             create function apply_balance(p_into regclass, p_event pgonce.projected) returns void language plpgsql as $$
             begin
                 execute format('insert into %s as b values ($1, $2) on conflict (account) do update set amount = b.amount + excluded.amount', p_into)
                     using p_event.entity, (p_event.payload ->> 'delta')::bigint;
             end $$;
             select pgonce.define_projection('balance', 'balance', 'apply_balance', 'marker');
             select pgonce.publish('money', 'moved', 'a' || i % 3, jsonb_build_object('delta', i)) from generate_series(1, 30) i;
             select pgonce.project('balance', message_id::text, type, subject, payload, headers) from pgonce.outbox",
        )
        .await;
    assert_eq!(fixture.json(&["projection", "status"])[0]["applied"], 30);
    assert!(
        fixture
            .ok(&["projection", "verify", "balance"])
            .starts_with("equal: 3 rows live")
    );
    fixture
        .sql("update balance set amount = 0 where account = 'a1'")
        .await;
    let run = fixture.run(&["projection", "verify", "balance"]);
    assert!(
        run.code == 1 && run.out.starts_with("different") && run.err.contains("rebuild"),
        "{run:?}"
    );
    let run = fixture.json(&["projection", "rebuild", "balance"]);
    assert_eq!(run, json!({"events": 30, "removed": 1, "added": 1}));
    assert_eq!(
        fixture.json(&["projection", "verify", "balance"])["equal"],
        true
    );
}
