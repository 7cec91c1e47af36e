//! Jobs and queues, as an operator meets them.

use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test]
async fn jobs_are_enqueued_looked_at_retried_and_cancelled() {
    let fixture = Fixture::installed().await;
    assert_eq!(fixture.ok(&["job", "list"]), "No jobs.\n");
    assert_eq!(fixture.ok(&["queue", "list"]), "No queues.\n");
    let mail = [
        "job",
        "enqueue",
        "mail",
        "{\"to\": \"ada\"}",
        "--unique-key",
        "welcome-7",
    ];
    assert_eq!(fixture.json(&mail)[0]["made_now"], true);
    assert_eq!(fixture.json(&mail)[0]["made_now"], false);
    let id = fixture.json(&mail)[0]["id"].to_string();
    let late = [
        "job",
        "enqueue",
        "mail",
        "--delay",
        "1 hour",
        "--priority",
        "-5",
        "--group",
        "g",
    ];
    assert_eq!(fixture.json(&late)[0]["made_now"], true);
    let statuses = |args: &[&str]| -> Vec<String> {
        let jobs = fixture.json(&[&["job", "list"], args].concat());
        let status = |job: &serde_json::Value| job["status"].as_str().unwrap().to_owned();
        jobs.as_array().unwrap().iter().map(status).collect()
    };
    assert_eq!(statuses(&["mail"]), ["scheduled", "ready"]);
    assert_eq!(statuses(&["--group", "g"]), ["scheduled"]);
    assert_eq!(statuses(&["--status", "dead"]), [""; 0]);
    assert_eq!(
        fixture.json(&["job", "show", &id])[0]["payload"],
        json!({"to": "ada"})
    );
    fixture.ok(&["queue", "pause", "mail"]);
    fixture.ok(&[
        "queue",
        "limit",
        "mail",
        "--max-running",
        "3",
        "--rate",
        "10",
        "--rate-per",
        "1 minute",
    ]);
    let queue = fixture.json(&["queue", "list"])[0].clone();
    assert_eq!(
        (&queue["paused"], &queue["max_running"], &queue["ready"]),
        (&json!(true), &json!(3), &json!(1))
    );
    fixture.ok(&["queue", "resume", "mail"]);
    assert_eq!(fixture.json(&["queue", "list"])[0]["paused"], false);
    assert_eq!(fixture.json(&["queue", "schedules"]), json!([]));
    fixture.ok(&["job", "cancel", &id, "--reason", "void"]);
    assert_eq!(
        fixture
            .run(&["job", "cancel", &id, "--reason", "void"])
            .code,
        7
    );
    assert_eq!(
        fixture
            .run(&["job", "retry", "mail", &id, "--reason", "again"])
            .code,
        7
    );
    assert_eq!(fixture.run(&["job", "show", "123456"]).code, 7);
    assert_eq!(
        fixture.json(&["job", "show", &id])[0]["acts"][0]["reason"],
        "void"
    );
    assert_eq!(
        fixture.json(&["job", "retry", "mail", "--all", "--reason", "back"])["retried"],
        0
    );
}
