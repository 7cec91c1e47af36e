//! Workers of `pgonce serve` and `pgonce work`: functions of the database and services, that fail, are away, or are killed.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use pgonce_testkit::wait_until;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};

use crate::consume::{number, wait_for};
use crate::consume_service::Service;
use crate::fixture::{Fixture, without_database};
use crate::relay::{Running, get};
use crate::serve::{DEADLINE, Serving};

/// Nothing keeps an effect from being there twice.
const TABLES: &str = "
create table done (at bigint generated always as identity, n bigint not null, key text);
create function pack(p_job jsonb) returns jsonb language plpgsql as $$
declare
    v_n bigint := (p_job -> 'payload' ->> 'n')::bigint;
begin
    insert into done (n, key) values (v_n, p_job ->> 'key');
    if v_n = -1 then
        raise exception 'never' using errcode = 'P4030';
    elsif v_n = -2 or v_n = -3 and (p_job ->> 'attempts')::integer < 3 then
        raise exception 'not now';
    end if;
    return jsonb_build_object('packed', v_n, 'queue', p_job -> 'queue');
end $$;
create function log_only(p_job jsonb) returns void language sql as
    'insert into done (n) values ((p_job -> ''payload'' ->> ''n'')::bigint)';
create function slowly(p_job jsonb) returns bigint language sql as $$
    select pg_sleep(0.01);
    insert into done (n, key) values ((p_job -> 'payload' ->> 'n')::bigint, p_job ->> 'key') returning n;
$$;
select pgonce.define_queue('*', p_max_attempts => 3, p_backoff => '10 ms', p_max_backoff => '50 ms');
";

async fn fixture() -> Fixture {
    let fixture = Fixture::installed().await;
    fixture.sql(TABLES).await;
    fixture
}

/// Jobs with these numbers; ten keys have them in turn.
async fn enqueue(fixture: &Fixture, queue: &str, numbers: std::ops::Range<i64>) {
    let (from, to) = (numbers.start, numbers.end - 1);
    fixture
        .sql(&format!(
            "select pgonce.enqueue('{queue}', jsonb_build_object('n', n), p_key => 'k' || n % 10) from generate_series({from}, {to}) n"
        ))
        .await;
}

struct File(tempfile::TempDir);

impl File {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("work.toml"), text).unwrap();
        Self(folder)
    }

    fn path(&self) -> String {
        self.0.path().join("work.toml").to_str().unwrap().to_owned()
    }

    fn serve(&self, fixture: &Fixture) -> Serving {
        let roles = ["--roles", "workers,metrics", "--workers-file", &self.path()];
        Serving::of(fixture, &roles, "")
    }
}

async fn wait_for_sql(fixture: &Fixture, serving: &Serving, sql: &str) {
    wait_until(sql, DEADLINE, async || number(fixture, sql).await > 0)
        .await
        .unwrap_or_else(|error| panic!("{error}: {}", serving.log.lock().unwrap()));
}

const NO_LIVE: &str = "select (count(*) = 0)::int::bigint from pgonce.job_live";

async fn assert_once_and_in_order(fixture: &Fixture, expected: i64) {
    assert_eq!(number(fixture, "select count(*) from done").await, expected);
    let distinct = "select count(distinct n) from done";
    assert_eq!(number(fixture, distinct).await, expected);
    let turned = "select count(*) from (select n, lag(n) over (partition by key order by at) as before from done) x where before > n";
    assert_eq!(number(fixture, turned).await, 0);
}

#[tokio::test]
async fn a_function_does_each_job_in_the_transaction_that_ends_it() {
    let fixture = fixture().await;
    enqueue(&fixture, "parcels", 0..40).await;
    for n in [-1, -2, -3] {
        let sql =
            format!("select pgonce.enqueue('parcels', '{{\"n\": {n}}}', p_key => 'failing {n}')");
        fixture.sql(&sql).await;
    }
    let big = "12345678901234567890123";
    fixture
        .sql(&format!("select pgonce.enqueue('quiet', '{{\"n\": 100}}'); select pgonce.enqueue('other', '{{\"n\": {big}}}')"))
        .await;
    let file = File::new(
        "[[workers]]\nqueues = [\"parcels\"]\nsql = \"pack\"\npoll_interval = \"50ms\"\nprefetch = 20\n\
         [[workers]]\nqueues = [\"quiet\"]\nsql = \"public.log_only\"\nconcurrency = 1\n",
    );
    let serving = file.serve(&fixture);
    let ended = "select (count(*) = 44)::int::bigint from pgonce.jobs where status in ('succeeded', 'dead')";
    wait_for_sql(&fixture, &serving, ended).await;
    // Of those that failed nothing is left; one of them was done at its third attempt.
    assert_once_and_in_order(&fixture, 42).await;
    for (n, status, attempts, code) in [
        (-1, "dead", 1, "P4030"),
        (-2, "dead", 3, "P0001"),
        (-3, "succeeded", 3, ""),
    ] {
        let sql = format!(
            "select count(*) from pgonce.jobs where key = 'failing {n}' and status = '{status}' and attempts = {attempts} \
             and coalesce(failure_code, '') = '{code}'"
        );
        let jobs = fixture.json(&["job", "list", "parcels", "--limit", "100"]);
        assert_eq!(number(&fixture, &sql).await, 1, "{n}: {jobs}");
    }
    let results = "select count(*) from pgonce.jobs where queue = 'parcels' and result = jsonb_build_object('packed', (result ->> 'packed')::bigint, 'queue', 'parcels')";
    assert_eq!(number(&fixture, results).await, 41);
    let none = "select count(*) from pgonce.jobs where queue = 'quiet' and status = 'succeeded' and coalesce(result, 'null') = 'null'";
    assert_eq!(number(&fixture, none).await, 1);
    // A queue that no worker names is left alone.
    let left = "select count(*) from pgonce.jobs where queue = 'other' and status = 'ready' and attempts = 0";
    assert_eq!(number(&fixture, left).await, 1);
    serving.readiness(200, "ready").await;
    let metrics = serving.text("/metrics", "").await;
    for line in [
        "pgonce_worker_jobs_total{queue=\"parcels\",outcome=\"done\"} 41",
        "pgonce_worker_jobs_total{queue=\"parcels\",outcome=\"failed\"} 6",
        "pgonce_worker_jobs_total{queue=\"quiet\",outcome=\"done\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn a_daemon_that_is_killed_again_and_again_does_each_job_once() {
    let fixture = fixture().await;
    enqueue(&fixture, "parcels", 0..400).await;
    let file = File::new(
        "[[workers]]\nqueues = [\"parcels\"]\nsql = \"slowly\"\nlease = \"1s\"\nprefetch = 10\n",
    );
    for round in 1..=4 {
        // Dropped is killed.
        let serving = file.serve(&fixture);
        let sql = format!("select (count(*) >= {})::int::bigint from done", round * 70);
        wait_for_sql(&fixture, &serving, &sql).await;
    }
    let serving = file.serve(&fixture);
    wait_for_sql(&fixture, &serving, NO_LIVE).await;
    assert_once_and_in_order(&fixture, 400).await;
}

#[tokio::test]
async fn a_service_gets_every_job_with_one_key_and_loses_no_attempt_while_it_is_away() {
    let fixture = fixture().await;
    // Bound, and not listening yet: nobody else gets the port meanwhile.
    let place = TcpSocket::new_v4().unwrap();
    place.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = place.local_addr().unwrap();
    enqueue(&fixture, "counted", 0..30).await;
    let file = File::new(&format!(
        "[[workers]]\nqueues = [\"counted\"]\nto = \"http://{address}/events\"\nhandler_timeout = \"4s\"\nlease = \"8s\"\n"
    ));
    let serving = file.serve(&fixture);
    serving
        .logged("the service is away; jobs wait for it")
        .await;
    // Leases are renewed meanwhile: nobody is given the job anew.
    let renewed = "select (count(*) > 0)::int::bigint from pgonce.job_live where state = 'running' \
                   and due_at > (select min(created_at) from pgonce.job) + interval '16 seconds'";
    wait_for_sql(&fixture, &serving, renewed).await;
    let attempts = "select max(attempts)::bigint from pgonce.job_live";
    assert_eq!(number(&fixture, attempts).await, 1);

    let service = std::sync::Arc::new(Service {
        first: [3].into(),
        first_hangs: [5].into(),
        always: [7].into(),
        ..Service::default()
    });
    service.clone().serve(place.listen(1024).unwrap());
    wait_for_sql(&fixture, &serving, NO_LIVE).await;
    assert_eq!(service.applied().len(), 29);
    service.assert_stable(&[7]);
    for (n, status, attempts, code) in [
        (0, "succeeded", 1, ""),
        (3, "succeeded", 2, ""),
        (5, "succeeded", 2, ""),
        (7, "dead", 3, "http_500"),
    ] {
        let sql = format!(
            "select count(*) from pgonce.jobs where id = (select min(id) + {n} from pgonce.job) and status = '{status}' \
             and attempts = {attempts} and coalesce(failure_code, '') = '{code}'"
        );
        let jobs = fixture.json(&["job", "list", "counted", "--limit", "100"]);
        assert_eq!(number(&fixture, &sql).await, 1, "{n}: {jobs}");
    }
}

/// The head of a response says that the job is done; what takes longer than a handler may is the reading of its result.
#[tokio::test]
async fn a_result_that_never_comes_whole_is_none_and_the_job_is_done() {
    async fn work() -> Response {
        let begin = stream::once(std::future::ready(Ok::<_, std::io::Error>("12")));
        Body::from_stream(begin.chain(stream::pending())).into_response()
    }
    let fixture = fixture().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/jobs", axum::routing::post(work));
    tokio::spawn(async move { axum::serve(listener, router).await });
    enqueue(&fixture, "slow", 0..1).await;
    let file = File::new(&format!(
        "[[workers]]\nqueues = [\"slow\"]\nto = \"http://{address}/jobs\"\nhandler_timeout = \"2s\"\nlease = \"8s\"\n"
    ));
    let serving = file.serve(&fixture);
    wait_for_sql(&fixture, &serving, NO_LIVE).await;
    let done = "select count(*) from pgonce.jobs where status = 'succeeded' and coalesce(result, 'null') = 'null'";
    let jobs = fixture.json(&["job", "list", "slow", "--limit", "100"]);
    assert_eq!(number(&fixture, done).await, 1, "{jobs}");
}

#[tokio::test]
async fn what_a_service_returns_is_the_result_and_a_word_decides() {
    async fn work(headers: HeaderMap, Json(payload): Json<Value>) -> Response {
        let header = |name: &str| {
            headers
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header("authorization").unwrap(), "Bearer of-the-service");
        assert_eq!(header("content-type").unwrap(), "application/json");
        assert_eq!(header("ce-source").unwrap(), "pgonce/queue");
        match payload["n"].as_i64() {
            Some(0) => Json(json!({"key": header("ce-subject"), "queue": header("ce-type"), "tenant": header("ce-tenant")}))
                .into_response(),
            Some(1) => (StatusCode::OK, "not JSON").into_response(),
            Some(2) => (StatusCode::UNPROCESSABLE_ENTITY, [("pgonce-disposition", "refuse")], "no such thing").into_response(),
            Some(3) => (StatusCode::OK, "1".repeat(100_000)).into_response(),
            _ => {
                let rest = async {
                    // What is there is sent meanwhile.
                    tokio::task::yield_now().await;
                    Err(std::io::Error::other("34 never comes"))
                };
                let begin = stream::once(std::future::ready(Ok("12")));
                Body::from_stream(begin.chain(stream::once(rest))).into_response()
            }
        }
    }
    let fixture = fixture().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = axum::Router::new().route("/jobs", axum::routing::post(work));
    tokio::spawn(async move { axum::serve(listener, router).await });
    for n in 0..5 {
        fixture
            .sql(&format!("select pgonce.enqueue('mail', '{{\"n\": {n}}}', p_key => 'a key', p_unique_key => '{n}', p_tenant => 'acme')"))
            .await;
    }
    let file = File::new(&format!(
        "[log]\nformat = \"json\"\n[listen]\naddress = \"127.0.0.1:0\"\n[[workers]]\nqueues = [\"mail\"]\nto = \"http://{address}/jobs\"\n\
         [workers.headers_env]\nauthorization = \"JOBS_TOKEN\"\n"
    ));
    let mut running = Running::with(
        &fixture,
        "work",
        &[&file.path()],
        &[("JOBS_TOKEN", "Bearer of-the-service".to_owned())],
    );
    let ended = "select (count(*) = 0)::int::bigint from pgonce.job_live";
    wait_for(&fixture, "the jobs to end", ended, &[&running]).await;
    let result = async |n: i32| {
        let sql = "select status || ' ' || coalesce(failure_code || ' ' || failure_message, coalesce(result, 'null')::text) \
                   from pgonce.jobs where tenant = 'acme' and unique_key = $1";
        let row = fixture
            .client
            .query_one(sql, &[&n.to_string()])
            .await
            .unwrap();
        row.get::<_, String>(0)
    };
    assert_eq!(
        result(0).await,
        "succeeded {\"key\": \"a%20key\", \"queue\": \"mail\", \"tenant\": \"acme\"}"
    );
    assert_eq!(result(1).await, "succeeded null");
    let refused = result(2).await;
    assert!(
        refused.starts_with("dead http_422") && refused.contains("no such thing"),
        "{refused}"
    );
    for unreadable in [3, 4] {
        assert_eq!(result(unreadable).await, "succeeded null");
    }
    let admin = running.admin().await;
    assert_eq!(get(&admin, "/readyz").await.0, 200);
    let (_, metrics) = get(&admin, "/metrics").await;
    assert!(
        metrics.contains("pgonce_worker_jobs_total{queue=\"mail\",outcome=\"done\"} 4"),
        "{metrics}"
    );
    running.signal(Signal::TERM);
    assert_eq!(running.end().await, 0, "{}", running.log());
    assert!(!running.log().contains("of-the-service"));
}

#[tokio::test]
async fn a_file_is_checked_and_a_function_that_is_missing_is_reported() {
    let example = without_database(&["work", "--print-example"]).out;
    let file = File::new(&example);
    let checked = without_database(&["work", "--check", &file.path()]);
    assert!(
        checked.code == 0 && checked.out.contains("parcels, mail, reports"),
        "{checked:?}"
    );
    let wrong = File::new("[[workers]]\nqueues = [\"q\"]\nsql = \"a b\"\n");
    let checked = without_database(&["work", "--check", &wrong.path()]);
    assert!(
        checked.code == 2 && checked.err.contains("no name of a function"),
        "{checked:?}"
    );
    assert_eq!(without_database(&["work"]).code, 2);

    let fixture = fixture().await;
    for (function, expected) in [
        ("no_such", "there is no function no_such(jsonb)"),
        ("many", "returns a set"),
    ] {
        fixture
            .sql("create or replace function many(p_job jsonb) returns setof jsonb language sql as 'select p_job'")
            .await;
        let file = File::new(&format!(
            "[[workers]]\nqueues = [\"q\"]\nsql = \"{function}\"\n"
        ));
        let run = fixture.run(&["work", &file.path()]);
        assert!(run.code == 2 && run.err.contains(expected), "{run:?}");
        // Beside others it is shown, and they go on.
        let serving = file.serve(&fixture);
        serving.readiness(503, expected).await;
    }
    let run = fixture.run(&["serve", "--roles", "workers"]);
    assert!(run.code == 2 && run.err.contains("workers_file"), "{run:?}");
}
