//! `pgonce forecast`: from counts that were sampled, and without reading what is large.

use serde_json::Value;

use crate::fixture::Fixture;

fn row<'a>(rows: &'a Value, what: &str) -> &'a Value {
    let rows = rows.as_array().unwrap();
    rows.iter().find(|row| row["what"] == what).unwrap()
}

#[tokio::test]
async fn what_is_stored_goes_towards_the_rate_times_the_retention() {
    let fixture = Fixture::installed().await;
    let nothing = fixture.json(&["forecast"]);
    for what in ["intents", "events", "messages", "jobs"] {
        let row = row(&nothing, what);
        assert_eq!(row["rows"], 0, "{row}");
        assert_eq!(row["rows_per_day"], Value::Null, "{row}");
        assert_eq!(row["bytes_then"], Value::Null, "{row}");
    }
    // A thousand intents that are kept for ten days; in two days 2000 came, and the statistics were reset on the way.
    fixture
        .sql(
            "insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             select 1, now(), now() + interval '10 days', 1, 'succeeded', '', 's', i::text, '\\x01' from generate_series(1, 1000) i;
             analyze pgonce.intent;
             insert into pgonce.sample (at, intents, suppressed, events, jobs)
             select date_trunc('minute', now()) - ago, intents, 0, events, 0
               from (values (interval '49 hours', 5000, 0), ('48 hours', 6000, 0), ('47 hours', 10, 100), ('1 hour', 1010, 200)) v (ago, intents, events)",
        )
        .await;
    let rows = fixture.json(&["forecast", "--days", "5"]);
    let intents = row(&rows, "intents");
    assert_eq!(intents["rows"], 1000, "{intents}");
    // 2000 in 48 hours; one hour of them did not count, for the reset.
    assert_eq!(intents["rows_per_day"], 1000, "{intents}");
    assert_eq!(intents["rows_then"], 6000, "{intents}");
    assert_eq!(intents["kept"], "10 days", "{intents}");
    let number = |name: &str| intents[name].as_f64().unwrap();
    let width = number("bytes") / number("rows");
    assert!(
        (number("bytes_then") / number("rows_then") / width - 1.0).abs() < 0.01,
        "{intents}"
    );
    assert!(
        (number("bytes_per_day") / 1000.0 / width - 1.0).abs() < 0.01,
        "{intents}"
    );
    // A hundred events a day, kept for a day: so many at most, and none was analysed yet.
    let events = row(&rows, "events");
    assert_eq!(
        (&events["rows_per_day"], &events["rows_then"]),
        (&100.into(), &100.into()),
        "{events}"
    );
    assert_eq!(events["bytes_then"], Value::Null, "{events}");
    // The retention ends the growth.
    let far = fixture.json(&["forecast", "--days", "365"]);
    assert_eq!(row(&far, "intents")["rows_then"], 10_000);
    let shown = fixture.ok(&["forecast"]);
    assert!(shown.contains("intents") && shown.contains("kB"), "{shown}");

    // Markers, by the partitions of days that are over.
    fixture
        .sql(
            "select pgonce._move_clock('-1 day'); select pgonce._create_inbox_partitions(); select pgonce._reset_clock();
             insert into pgonce.inbox_marker (accepted_at, day, tenant, consumer, source, message_id)
             select now(), (now() at time zone 'UTC')::date - 1, '', 'c', 's', i::text from generate_series(1, 300) i;
             analyze pgonce.inbox_marker",
        )
        .await;
    let rows = fixture.json(&["forecast"]);
    let messages = row(&rows, "messages");
    assert_eq!(messages["rows_per_day"], 300, "{messages}");
    assert_eq!(messages["rows_then"], 9000, "{messages}");
}

/// An application writes its success by itself: times that no other reckons with must not end the forecast for everybody.
#[tokio::test]
async fn records_of_any_time_stop_no_forecast() {
    let fixture = Fixture::installed().await;
    fixture
        .sql(
            "insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             select 1, '-infinity', now(), 1, 'succeeded', '', 's', i::text, '\\x01' from generate_series(1, 3) i;
             insert into pgonce.intent (fence, first_at, expires_at, attempts, status, tenant, scope, key, fingerprint)
             select 1, now(), '294276-01-01', 1, 'succeeded', '', 's', 'far ' || i, '\\x01' from generate_series(1, 50) i",
        )
        .await;
    let rows = fixture.json(&["forecast"]);
    let intents = row(&rows, "intents");
    assert_eq!(intents["kept"], "1000 years", "{intents}");
}
