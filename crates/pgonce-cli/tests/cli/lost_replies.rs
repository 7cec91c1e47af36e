//! Connections that break while the program acts: "no connection" means that nothing was done, and what may have been done is
//! said to be so.

use pgonce_testkit::{Action, CuttingProxy, FaultPlan};
use serde_json::Value;

use crate::console::{CALL, fill};
use crate::fixture::{Fixture, Run};

fn through(fixture: &Fixture, proxy: &CuttingProxy, args: &[&str]) -> Run {
    let mut command = fixture.command(args);
    command.env("DATABASE_URL", proxy.url_for(fixture.database.name()));
    Run::of(command.output().unwrap())
}

async fn number(fixture: &Fixture, sql: &str) -> i64 {
    fixture.client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn an_act_whose_reply_is_lost_is_never_said_to_have_done_nothing() {
    let fixture = Fixture::installed().await;
    let proxy = CuttingProxy::start(("127.0.0.1", fixture.server.port())).unwrap();
    let act = ["job", "enqueue", "mail", "{}", "--format", "json"];
    assert_eq!(through(&fixture, &proxy, &act).code, 0);
    let plan = FaultPlan::every(
        &proxy.transcript(),
        &[Action::CutBefore, Action::CutAfter, Action::DropReply],
    );
    let (mut uncertain, mut refused) = (0, 0);
    for trial in &plan.trials {
        fixture
            .sql("delete from pgonce.job_live; delete from pgonce.job")
            .await;
        proxy.start_over();
        proxy.arm_trial(trial);
        let run = through(&fixture, &proxy, &act);
        // What the server still works on has ended when its locks are free.
        fixture.sql("begin; lock table pgonce.job; commit").await;
        let jobs = number(&fixture, "select count(*) from pgonce.job").await;
        match run.code {
            0 => assert_eq!(jobs, 1, "{trial}: {run:?}"),
            3 => {
                refused += 1;
                assert_eq!(jobs, 0, "{trial}: {run:?}");
            }
            14 => {
                uncertain += jobs;
                let error: Value = serde_json::from_str(&run.err).unwrap();
                assert_eq!(error["error"]["code"], "08007", "{trial}");
                let hint = error["error"]["hint"].as_str().unwrap();
                assert!(hint.contains("Look before"), "{trial}: {hint}");
            }
            _ => panic!("{trial}: {run:?}"),
        }
    }
    assert!(uncertain > 0 && refused > 0, "{uncertain} {refused}");
}

#[tokio::test]
async fn an_act_that_shows_what_it_made_is_never_said_to_have_done_nothing() {
    let fixture = Fixture::installed().await;
    let proxy = CuttingProxy::start(("127.0.0.1", fixture.server.port())).unwrap();
    let act = ["outbox", "subscriptions", "create", "billing"];
    assert_eq!(through(&fixture, &proxy, &act).code, 0);
    let plan = FaultPlan::every(&proxy.transcript(), &[Action::CutBefore]);
    let mut shown_later = 0;
    for trial in &plan.trials {
        fixture
            .sql("delete from pgonce.outbox_cursor; delete from pgonce.outbox_subscription")
            .await;
        proxy.start_over();
        proxy.arm_trial(trial);
        let run = through(&fixture, &proxy, &act);
        fixture
            .sql("begin; lock table pgonce.outbox_subscription; commit")
            .await;
        let made = number(&fixture, "select count(*) from pgonce.outbox_subscription").await;
        match run.code {
            0 => assert_eq!(made, 1, "{trial}: {run:?}"),
            3 => assert_eq!(made, 0, "{trial}: {run:?}"),
            14 => shown_later += i64::from(run.err.contains("it was done")) * made,
            _ => panic!("{trial}: {run:?}"),
        }
    }
    assert!(shown_later > 0);
}

#[tokio::test]
async fn what_only_looks_never_says_that_it_may_have_been_done() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let proxy = CuttingProxy::start(("127.0.0.1", fixture.server.port())).unwrap();
    let settle = format!("external settle {CALL} confirmed --reason r --dry-run");
    let show = format!("external show {CALL}");
    for line in [
        "intent show s stuck",
        "intent settle s stuck --reason r --dry-run",
        "intent settle s --stuck --reason r --dry-run",
        &show,
        &settle,
        "inbox show c 1",
        "inbox skip c 1 --reason r --dry-run",
        "outbox subscriptions",
        "outbox evict s --reason r --dry-run",
        "outbox retention",
        "outbox tail",
        "scope list",
        "job show 1",
        "suppression",
        "audit",
        "import show j",
        "projection status",
        "ledger accounts",
        "purge --dry-run",
        "recover --dry-run",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        proxy.start_over();
        let run = through(&fixture, &proxy, &words);
        assert_eq!(run.code, 0, "{line}: {run:?}");
        let is_end = |text: &str| ["commit", "rollback"].contains(&text);
        let ends: Vec<_> = proxy
            .transcript()
            .into_iter()
            .filter(|message| message.name == "Query" && is_end(&message.text))
            .collect();
        assert!(!ends.is_empty(), "{line}");
        for end in &ends {
            proxy.start_over();
            proxy.arm(pgonce_testkit::Fault::at(end, Action::DropReply));
            let run = through(&fixture, &proxy, &words);
            assert!([0, 3].contains(&run.code), "{line}: {run:?}");
        }
    }
}

#[tokio::test]
async fn acts_on_many_intents_say_how_many_were_done_before_the_connection_broke() {
    let fixture = Fixture::installed().await;
    let fail = "select pgonce.fail('s', 'k' || n, '\\x01', 1, false, 'declined', 'no') from generate_series(1, 5) n";
    fixture.sql(fail).await;
    let proxy = CuttingProxy::start(("127.0.0.1", fixture.server.port())).unwrap();
    let act = [
        "intent", "evict", "s", "--failed", "declined", "--reason", "r", "--yes", "--force", "s",
        "--format", "json",
    ];
    let run = through(&fixture, &proxy, &act);
    assert_eq!(run.code, 0, "{run:?}");
    let commits: Vec<_> = proxy
        .transcript()
        .into_iter()
        .filter(|message| message.name == "Query" && message.text == "commit")
        .collect();
    fixture.sql("delete from pgonce.intent").await;
    fixture.sql(fail).await;
    proxy.start_over();
    // The third of the five acts, from behind.
    let third = &commits[commits.len() - 3];
    proxy.arm(pgonce_testkit::Fault::at(third, Action::DropReply));
    let run = through(&fixture, &proxy, &act);
    assert_eq!(run.code, 14, "{run:?}");
    let said: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(said["done"], 2, "{said}");
    assert_eq!(said["left"], 3, "{said}");
    assert_eq!(said["ended_at"], "k3", "{said}");
}
