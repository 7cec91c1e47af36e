//! Duplicates that a gateway answers from a cache.

use pgonce_testkit::Redis;

use crate::fixture::{Fixture, Gateway, RunOutput, Setup, file, get, program};
use crate::upstream::Upstream;

const CACHE: &str = "[cache]\nurl_env = \"CACHE\"\nkey_env = \"CACHE_KEY\"\ntimeout = \"20s\"\n";
const KEY: &str = "000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0F";

async fn hits(gateway: &Gateway) -> u64 {
    let metrics = get(&format!("{}/metrics", gateway.admin)).await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    let line = "pgonce_cache_requests_total{result=\"hit\"} ";
    let count = text.lines().find_map(|found| found.strip_prefix(line));
    count.unwrap().parse().unwrap()
}

/// Orders again until the cache has answered.
async fn order_until_cached(gateway: &Gateway, body: &[u8]) {
    while hits(gateway).await == 0 {
        let again = gateway.order("k").await;
        assert_eq!((again.is_replay(), &*again.body), (true, body));
    }
}

#[tokio::test]
async fn gateways_share_a_cache_and_need_none() {
    let (fixture, upstream) = (Fixture::new().await, Upstream::start().await);
    let redis = Redis::start().await.unwrap();
    let config = Setup::default().in_front_of(&upstream.url);
    let (url, cache) = (fixture.database.url(), redis.url());
    let shared = format!("{CACHE}{config}");
    let variables = [
        ("DATABASE_URL", &*url),
        ("CACHE", &*cache),
        ("CACHE_KEY", KEY),
    ];
    let first = Gateway::start_with(&shared, &variables).await;
    let body = first.order("k").await.body;
    order_until_cached(&first, &body).await;
    let second = Gateway::start_with(&shared, &variables).await;
    order_until_cached(&second, &body).await;
    redis.kill().await.unwrap();
    for (gateway, key) in [(&first, "fresh-1"), (&second, "fresh-2")] {
        let again = gateway.order("k").await;
        assert_eq!((again.is_replay(), &again.body), (true, &body));
        let fresh = gateway.order(key).await;
        assert_eq!((fresh.status, fresh.is_replay()), (201, false));
    }
    let in_memory = fixture.gateway(&format!("[cache]\n{config}")).await;
    order_until_cached(&in_memory, &body).await;
    assert_eq!(upstream.orders().len(), 3);
}

#[tokio::test]
async fn a_cache_that_cannot_be_used_stops_the_start() {
    let config = Setup::default().in_front_of("http://127.0.0.1:9");
    let start = async |cache: &str, key: Option<&str>, more: &[&str]| {
        let (_folder, path) = file(&format!("{cache}{config}"));
        let args = [&["gateway"], more, &[path.to_str().unwrap()]].concat();
        let mut command = program(&args);
        command.env("DATABASE_URL", "postgres://127.0.0.1:9/none");
        command
            .env("CACHE", "redis://127.0.0.1:9")
            .env_remove("CACHE_KEY");
        if let Some(key) = key {
            command.env("CACHE_KEY", key);
        }
        RunOutput::of(command.output().await.unwrap())
    };
    let missing = start(CACHE, None, &[]).await;
    assert!(
        missing
            .err
            .contains("the variable CACHE_KEY, which is not set"),
        "{missing:?}"
    );
    for bad in ["", "00", &KEY[1..], &KEY.replace('a', "g")] {
        let refused = start(CACHE, Some(bad), &[]).await;
        assert!(refused.err.contains("64 hex digits"), "{bad}: {refused:?}");
        assert!(bad.is_empty() || !refused.err.contains(bad), "{refused:?}");
    }
    let unsealed = start("[cache]\nurl_env = \"CACHE\"\n", None, &["--check"]).await;
    assert!(
        unsealed.err.contains("must be sealed with a key"),
        "{unsealed:?}"
    );
}

/// Another gateway with the key replays; the database, and a gateway without it, see nothing.
#[tokio::test]
async fn responses_are_encrypted_with_a_key_that_the_database_never_sees() {
    let (fixture, upstream) = (Fixture::new().await, Upstream::start().await);
    let config = Setup::default().in_front_of(&upstream.url);
    let sealed = format!("[encryption]\nkeys_env = \"ANSWER_KEYS\"\n{config}");
    let url = fixture.database.url();
    let old = format!("a:{KEY}");
    let both = format!("b:{},{old}", KEY.replace('0', "1"));
    let first =
        Gateway::start_with(&sealed, &[("DATABASE_URL", &url), ("ANSWER_KEYS", &old)]).await;
    let body = first.order("k").await.body;
    let second =
        Gateway::start_with(&sealed, &[("DATABASE_URL", &url), ("ANSWER_KEYS", &both)]).await;
    let again = second.order("k").await;
    assert_eq!((again.is_replay(), &again.body), (true, &body));
    second.order("k-2").await;
    let keys = "select string_agg(answer ->> 'key', ',' order by first_at) from pgonce.intent where answer ? 'pgonce_sealed'";
    assert_eq!(fixture.sql(keys).await, ["a,b"]);
    let plain = fixture.gateway(&config).await;
    let blind = plain.order("k").await;
    assert_ne!(blind.body, body);
    assert_eq!(upstream.orders().len(), 2);
    for bad in ["", "a", "a:00"] {
        let (_folder, path) = file(&sealed);
        let mut command = program(&["gateway", path.to_str().unwrap()]);
        command.env("DATABASE_URL", &url).env("ANSWER_KEYS", bad);
        let refused = RunOutput::of(command.output().await.unwrap());
        assert!(
            refused.code == 2 && refused.err.contains("ANSWER_KEYS"),
            "{bad}: {refused:?}"
        );
    }
}

/// Each route names a scope, and each scope says what is left of a response in the database.
#[tokio::test]
async fn a_route_says_whether_its_responses_are_stored_encrypted_or_not_at_all() {
    let (fixture, upstream) = (Fixture::new().await, Upstream::start().await);
    let route = |path: &str, scope: &str| {
        format!(
            "[[routes]]\npath = \"{path}\"\nmethods = [\"POST\"]\nupstream = \"u\"\n\
             [routes.once]\nscope = \"{scope}\"\nprincipal = \"none\"\n"
        )
    };
    let config = |encrypted: &str| {
        format!(
            "[encryption]\nkeys_env = \"ANSWER_KEYS\"\nscopes = [\"{encrypted}\"]\n[listen]\naddress = \"127.0.0.1:0\"\n\
             admin = \"127.0.0.1:0\"\n[upstreams.u]\nurl = \"{}\"\n[scopes.cards]\nretention = \"1d\"\n[scopes.open]\n\
             retention = \"1d\"\n[scopes.bare]\nretention = \"1d\"\nstorage = \"status\"\n{}{}{}",
            upstream.url,
            route("/cards", "cards"),
            route("/open", "open"),
            route("/bare", "bare"),
        )
    };
    let (url, key) = (fixture.database.url(), format!("a:{KEY}"));
    let variables = [("DATABASE_URL", &*url), ("ANSWER_KEYS", &*key)];
    let gateway = Gateway::start_with(&config("cards"), &variables).await;
    let post = async |path: &str| gateway.post(path, &[("idempotency-key", "k")], "{}").await;
    for path in ["/cards", "/open"] {
        let (first, again) = (post(path).await, post(path).await);
        assert_eq!((first.status, again.is_replay()), (201, true), "{path}");
        assert_eq!(first.body, again.body, "{path}");
    }
    assert_eq!(post("/bare").await.status, 201);
    let again = post("/bare").await;
    assert_eq!((again.status, again.code().as_str()), (410, "P4031"));
    assert_eq!(again.json()["reason"], "answer_not_kept");
    assert_eq!(upstream.orders().len(), 3);
    let stored = "select string_agg(concat_ws(' ', scope, answer ? 'pgonce_sealed', answer is null), ', ' order by scope) from pgonce.intent";
    assert_eq!(fixture.sql(stored).await, ["bare t, cards t f, open f f"]);
    let (_folder, path) = file(&config("nothing"));
    let refused = RunOutput::of(
        program(&["gateway", "--check", path.to_str().unwrap()])
            .output()
            .await
            .unwrap(),
    );
    assert!(
        refused.err.contains("there is no scope \"nothing\""),
        "{refused:?}"
    );
}

/// Every character of it takes two in JSON.
#[tokio::test]
async fn a_contract_of_the_file_allows_every_response_that_its_routes_keep() {
    let (fixture, upstream) = (Fixture::new().await, Upstream::start().await);
    let once = "max_response = \"2 MiB\"";
    let setup = Setup {
        once,
        ..Setup::default()
    };
    let _gateway = fixture.gateway(&setup.in_front_of(&upstream.url)).await;
    let allowed = "select (max_answer >= 4 * 1024 * 1024)::text from pgonce.scope where scope = 'orders.create'";
    assert_eq!(fixture.sql(allowed).await, ["true"]);
}
