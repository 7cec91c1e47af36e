//! The cases of conformance/, which every client passes, run by the SDK itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{
    Ack, Attempt, Claim, ClaimKind, Done, Error, Event, Failure, Intent, Isolation, Lease, Once,
    Result,
};
use pgonce_tests::{Cut, Cutter, Setting, TestDriver, World, in_time};
use serde_json::{Map, Value, json};

use crate::conformance_own::OwnTransactions;
use crate::conformance_page::{cases, matrix};

const OUTCOMES: [&str; 10] = [
    "done",
    "conflict",
    "busy",
    "gone",
    "fenced",
    "invalid",
    "uncertain",
    "refused",
    "failed",
    "error",
];

pub(crate) type Found = Map<String, Value>;

struct Runner<'a, D: OwnTransactions> {
    world: &'a World<D>,
    once: Once<D>,
    cutter: Cutter,
    open: HashMap<String, Attempt<D>>,
    leases: HashMap<String, Lease<D>>,
}

impl<D: OwnTransactions> Runner<'_, D> {
    async fn run(&mut self, case: &Value) {
        let name = &case["name"];
        for step in list(&case["steps"]) {
            for fault in list(&step["faults"]) {
                self.arm(text(fault, "at"), text(fault, "action"), text(step, "do"));
            }
            let mut found = Found::new();
            found.insert("outcome".into(), "done".into());
            if let Err(error) = self.step(step, &mut found).await {
                note_error(&error, &mut found);
            }
            assert!(
                !self.cutter.is_armed(),
                "{name}: a fault did not strike: {step}"
            );
            let expected = step["expect"].as_object().cloned().unwrap_or_default();
            for (member, value) in &expected {
                let got = found.get(member).unwrap_or(&Value::Null);
                assert!(equal(got, value), "{name}: {member} of {step}\n{found:?}");
            }
            if !expected.contains_key("outcome") {
                let outcome = found["outcome"].as_str().unwrap();
                assert!(
                    !OUTCOMES[1..].contains(&outcome),
                    "{name}: {step}\n{found:?}"
                );
            }
        }
        for check in list(&case["finally"]) {
            let value = match &check["value"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(
                self.world.see.text(text(check, "sql")).await,
                value,
                "{name}: {check}"
            );
        }
    }

    fn arm(&self, at: &str, action: &str, step: &str) {
        let (text, cut) = cut_of(at, action, step);
        self.cutter.arm(text, cut);
    }

    async fn step(&mut self, step: &Value, found: &mut Found) -> Result<()> {
        match text(step, "do") {
            "sql" => self.world.see.run(text(step, "sql")).await,
            "clock" => {
                let move_clock = format!("select pgonce._move_clock('{}')", text(step, "move"));
                self.world.see.run(&move_clock).await;
            }
            "once" => self.command(step, found).await?,
            "hold" => match self.once.claim(&intent(step)?).await? {
                Claim::Run(mut attempt) => {
                    run_all::<D>(&mut attempt, &step["sql"]).await?;
                    note_claim(attempt.kind(), attempt.attempts(), found);
                    self.open.insert(text(step, "as").to_owned(), attempt);
                }
                other => not_held(other, found)?,
            },
            "finish" => {
                let attempt = self.open.remove(text(step, "as")).unwrap();
                if step["rollback"] == true {
                    attempt.abandon().await?;
                } else {
                    note_done(&attempt.succeed(ack(step)?).await?, found);
                }
            }
            "lease" => {
                let length = Duration::from_secs(step["seconds"].as_u64().unwrap());
                match self.once.lease(&intent(step)?, length).await? {
                    Claim::Run(lease) => {
                        note_claim(lease.kind(), lease.attempts(), found);
                        self.leases.insert(text(step, "as").to_owned(), lease);
                    }
                    other => not_held(other, found)?,
                }
            }
            "heartbeat" => {
                self.leases
                    .get_mut(text(step, "as"))
                    .unwrap()
                    .heartbeat()
                    .await?
            }
            "release" => match self.leases.remove(text(step, "as")) {
                Some(lease) => lease.release().await?,
                // A holder that was turned away has no lease left to give back; SQL has only the fence.
                None => {
                    let code = self
                        .world
                        .see
                        .code("select pgonce.release('conformance', 'k', 2)")
                        .await;
                    found.insert("outcome".into(), "fenced".into());
                    found.insert("code".into(), code.into());
                }
            },
            "lease_succeed" => {
                let lease = self.leased(step);
                let intent = lease.intent().clone();
                match lease.succeed(ack(step)?).await {
                    Err(Error::Uncertain(_) | Error::Disconnected(_)) => {
                        match self.once.lease(&intent, Duration::from_secs(60)).await? {
                            Claim::Replay(done) => note_done(&done, found),
                            other => panic!("{other:?}"),
                        }
                    }
                    end => note_done(&end?, found),
                }
            }
            "lease_fail" => {
                let failure = failure(&step["fail"])?;
                self.leased(step).fail(failure.clone()).await?;
                return Err(failure.into());
            }
            "lease_write" => {
                let mut attempt = self.leases[text(step, "as")].begin().await?;
                run_all::<D>(&mut attempt, &step["sql"]).await?;
                note_done(&attempt.succeed(ack(step)?).await?, found);
            }
            "accept" | "accept_batch" | "publish" | "join" => {
                let url = self.cutter.url_for(self.world.database());
                let isolation = self.world.setting.isolation;
                D::in_own_transaction(&url, isolation, &self.once, step, found).await?;
            }
            "execute" => {
                let intent = match step["first"] == true {
                    true => intent(step)?.known_first(),
                    false => intent(step)?,
                };
                let (statement, value) = (text(step, "statement"), text(step, "value"));
                note_done(
                    &D::execute(&self.once, &intent, statement, value).await?,
                    found,
                );
            }
            other => panic!("unknown step {other}"),
        }
        Ok(())
    }

    fn leased(&mut self, step: &Value) -> Lease<D> {
        self.leases.remove(text(step, "as")).unwrap()
    }

    async fn command(&self, step: &Value, found: &mut Found) -> Result<()> {
        let runs = Arc::new(AtomicU64::new(0));
        let end = match intent(step) {
            Ok(intent) => {
                let count = &runs;
                self.once
                    .run(&intent, async |attempt| {
                        let run = count.fetch_add(1, Ordering::Relaxed);
                        work(attempt, &step["work"], run).await
                    })
                    .await
            }
            Err(error) => Err(error),
        };
        found.insert("runs".into(), runs.load(Ordering::Relaxed).into());
        note_done(&end?, found);
        Ok(())
    }
}

/// What to cut for a fault, in the SDK's own words for the same messages.
fn cut_of<'a>(at: &'a str, action: &str, step: &str) -> (&'a str, Cut) {
    match (at, action) {
        // A call of its own has no COMMIT: its statement commits by itself.
        ("commit", "reply") if step == "lease_succeed" => ("pgonce.succeed", Cut::Reply),
        ("commit", "reply") => ("commit\0", Cut::Reply),
        ("commit", "request") => ("commit\0", Cut::Request),
        (text, "request") => (text, Cut::Request),
        ("select outcome", "reply") => ("pgonce._claim_fast", Cut::Reply),
        // The success travels with its COMMIT: what loses one of them before it is done loses both.
        ("select 'done' from pgonce.succeed", "reply") => ("pgonce._success_row", Cut::Request),
        ("select 'done' from pgonce.fail", "reply") => ("pgonce.fail", Cut::Request),
        (text, "reply") => (text, Cut::Reply),
        (_, other) => panic!("{other} is no action that a runner knows"),
    }
}

#[test]
#[should_panic(expected = "abort is no action that a runner knows")]
fn a_fault_that_no_runner_knows_is_refused() {
    cut_of("commit", "abort", "once");
}

async fn work<D: TestDriver>(mut attempt: Attempt<D>, work: &Value, run: u64) -> Result<Done> {
    if run == 0 {
        run_all::<D>(&mut attempt, &work["first_run_sql"]).await?;
    }
    run_all::<D>(&mut attempt, &work["sql"]).await?;
    for published in list(&work["publish"]) {
        attempt.publish(event(published)?).await?;
    }
    if work["fail"].is_object() {
        return Err(failure(&work["fail"])?.into());
    }
    if work["raise"] == true {
        return Err(Error::work("the work's own"));
    }
    attempt.succeed(ack(work)?).await
}

async fn run_all<D: TestDriver>(attempt: &mut Attempt<D>, statements: &Value) -> Result<()> {
    for statement in list(statements) {
        D::exec(attempt.conn(), statement.as_str().unwrap()).await?;
    }
    Ok(())
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(crate) fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member]
        .as_str()
        .unwrap_or_else(|| panic!("{member} of {value}"))
}

pub(crate) fn intent(step: &Value) -> Result<Intent> {
    let usual = json!({"item": "book"});
    let request = step.get("request").unwrap_or(&usual);
    let scope = step["scope"].as_str().unwrap_or("conformance");
    let intent = Intent::new(scope, text(step, "key"), request)?;
    match step["tenant"].as_str() {
        Some(tenant) => intent.tenant(tenant),
        None => Ok(intent),
    }
}

pub(crate) fn ack(spec: &Value) -> Result<Ack> {
    spec.get("answer")
        .map_or_else(|| Ok(Ack::status()), Ack::value)
}

pub(crate) fn event(spec: &Value) -> Result<Event> {
    let event = Event::new(text(spec, "topic"), text(spec, "type")).subject(text(spec, "subject"));
    match spec.get("payload") {
        Some(payload) => event.payload(payload),
        None => Ok(event),
    }
}

fn failure(spec: &Value) -> Result<Failure> {
    let (code, message) = (text(spec, "code"), text(spec, "message"));
    let failure = match text(spec, "kind") {
        "permanent" => Failure::permanent(code, message),
        _ => Failure::transient(code, message),
    };
    match spec.get("answer") {
        Some(answer) => failure.with_answer(answer),
        None => Ok(failure),
    }
}

fn note_claim(kind: ClaimKind, attempts: u32, found: &mut Found) {
    let outcome = match kind {
        ClaimKind::Fresh => "fresh",
        ClaimKind::Takeover => "takeover",
        ClaimKind::Retry => "retry",
    };
    found.insert("outcome".into(), outcome.into());
    found.insert("attempts".into(), attempts.into());
}

pub(crate) fn note_done(done: &Done, found: &mut Found) {
    let answer = done.ack().json().cloned().unwrap_or_default();
    found.insert("answer".into(), answer);
    found.insert("replayed".into(), done.replayed().into());
    found.insert("attempts".into(), done.attempts().into());
}

pub(crate) fn not_held<R: std::fmt::Debug>(claim: Claim<R>, found: &mut Found) -> Result<()> {
    match claim {
        Claim::Replay(done) => {
            note_done(&done, found);
            found.insert("outcome".into(), "replay".into());
            Ok(())
        }
        Claim::Refused(failure) => Err(Error::Refused(failure)),
        Claim::Busy { retry_after } => Err(Error::Busy {
            retry_after,
            accepted: false,
        }),
        other => panic!("{other:?}"),
    }
}

fn note_error(error: &Error, found: &mut Found) {
    let outcome = match error {
        Error::Conflict(_) => "conflict",
        Error::Busy { .. } => "busy",
        Error::Gone(_) => "gone",
        Error::Fenced(_) => "fenced",
        Error::Invalid(_) => "invalid",
        Error::Uncertain(_) => "uncertain",
        Error::Refused(_) => "refused",
        Error::Failed(_) => "failed",
        _ => "error",
    };
    found.insert("outcome".into(), outcome.into());
    found.insert("code".into(), error.code().into());
    found.insert("error".into(), error.to_string().into());
    if let Error::Refused(failure) | Error::Failed(failure) = error {
        found.insert("failure_code".into(), failure.code().into());
        let answer = failure.answer().cloned().unwrap_or_default();
        found.insert("answer".into(), answer);
        found.insert("replayed".into(), failure.replayed().into());
    }
}

/// 100 and 1e2 are one number.
fn equal(a: &Value, b: &Value) -> bool {
    a == b
        || a.is_number() && b.is_number() && a.as_f64() == b.as_f64() && !(a.is_i64() && b.is_i64())
}

async fn every_case_holds<D: OwnTransactions>(setting: Setting) {
    for case in &cases() {
        let world = World::<D>::in_setting(setting).await;
        let effect = "create table effect (id bigint generated always as identity, note text)";
        world.see.run(effect).await;
        let cutter = Cutter::in_front_of(world.port()).await;
        let mut runner = Runner {
            once: world.another_at(&cutter.url_for(world.database()), 4, |b| b),
            world: &world,
            cutter,
            open: HashMap::new(),
            leases: HashMap::new(),
        };
        in_time(runner.run(case)).await;
    }
}

/// Runs the cases in one setting, which the matrix must name.
async fn run(library: &str, isolation: Isolation, pooler: bool) {
    let level = match isolation {
        Isolation::RepeatableRead => Some("repeatable read"),
        Isolation::Serializable => Some("serializable"),
        _ => None,
    };
    let named = matrix().iter().any(|run| {
        run["language"] == "Rust"
            && run["library"] == library
            && run["isolation"].as_str() == level
            && run["pooler"].as_bool().unwrap_or_default() == pooler
    });
    assert!(named, "conformance/matrix.json lacks this run");
    let setting = Setting {
        major: None,
        isolation,
        pooler,
    };
    match library {
        "sqlx" => every_case_holds::<Sqlx>(setting).await,
        _ => every_case_holds::<TokioPostgres>(setting).await,
    }
}

macro_rules! runs {
    ($($name:ident: $library:literal, $isolation:ident, $pooler:literal;)+) => {
        $(#[tokio::test]
        async fn $name() {
            run($library, Isolation::$isolation, $pooler).await;
        })+

        #[test]
        fn the_matrix_names_no_run_of_rust_that_is_not_made() {
            let named = matrix().iter().filter(|run| run["language"] == "Rust").count();
            assert_eq!(named, [$($library),+].len());
        }
    };
}

runs! {
    every_case_holds_over_sqlx: "sqlx", ReadCommitted, false;
    every_case_holds_over_sqlx_and_pgbouncer: "sqlx", ReadCommitted, true;
    every_case_holds_over_sqlx_and_pgbouncer_repeatable_read: "sqlx", RepeatableRead, true;
    every_case_holds_over_sqlx_and_pgbouncer_serializable: "sqlx", Serializable, true;
    every_case_holds_over_tokio_postgres: "tokio-postgres", ReadCommitted, false;
    every_case_holds_over_tokio_postgres_and_pgbouncer: "tokio-postgres", ReadCommitted, true;
    every_case_holds_over_tokio_postgres_and_pgbouncer_repeatable_read: "tokio-postgres", RepeatableRead, true;
    every_case_holds_over_tokio_postgres_and_pgbouncer_serializable: "tokio-postgres", Serializable, true;
}
