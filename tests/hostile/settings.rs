//! Settings that a database, a role or the work itself may have.

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::migrate::public_headers;
use pgonce::{Error, Intent, Once};
use pgonce_testkit::{Binaries, shared};
use pgonce_tests::{Observer, TestDriver, install, run_example};
use tokio_postgres::NoTls;

use crate::campaign::{Campaign, database, in_time, under};
use crate::tally::QUIET;

/// What a transaction of the caller's own, and SQL by hand, may end with at a higher level; the SDK tries again.
const SERIALIZATION: &[&str] = &["40001"];

/// What limits of time end a session, a transaction, a statement or a wait with.
const TIMEOUTS: &[&str] = &["57014", "55P03", "25P03", "25P04", "08006", "08007"];

#[tokio::test]
async fn serializable_by_default() {
    let settings = &["default_transaction_isolation = 'serializable'"];
    in_time(under(settings, SERIALIZATION, 30)).await;
}

#[tokio::test]
async fn repeatable_read_by_default() {
    let settings = &["default_transaction_isolation = 'repeatable read'"];
    in_time(under(settings, SERIALIZATION, 30)).await;
}

#[tokio::test]
async fn strings_do_not_conform_to_the_standard() {
    in_time(under(
        &[
            "standard_conforming_strings = off",
            "escape_string_warning = off",
            "backslash_quote = off",
            "bytea_output = 'escape'",
            "intervalstyle = 'iso_8601'",
            "datestyle = 'German'",
            "extra_float_digits = -15",
            "timezone = 'Asia/Kolkata'",
            "xmloption = 'document'",
        ],
        &[],
        QUIET,
    ))
    .await;
}

/// Statements, locks and idle transactions that may not take long. Work idles now and then for longer.
#[tokio::test]
async fn short_timeouts() {
    in_time(async {
        let settings = [
            "statement_timeout = '150ms'",
            "lock_timeout = '30ms'",
            "idle_in_transaction_session_timeout = '300ms'",
            "idle_session_timeout = '400ms'",
        ];
        timeouts(None, &settings).await;
    })
    .await;
}

#[tokio::test]
async fn short_transactions() {
    let newer = (17..=18).find(|major| Binaries::of_major(*major).is_ok());
    let Some(major) = newer else {
        // transaction_timeout came with PostgreSQL 17.
        return;
    };
    in_time(timeouts(Some(major), &["transaction_timeout = '120ms'"])).await;
}

async fn timeouts(major: Option<u32>, settings: &[&str]) {
    let (_server, database) = database(major).await;
    let see = Observer::connect(&database.url()).await;
    // What the oracle asks is not under test, and takes longer on a busy machine.
    let name = |setting: &&str| setting.split_once(' ').unwrap().0.to_owned();
    let unlimited = settings.iter().map(name);
    let unlimited: Vec<_> = unlimited.map(|name| format!("-c%20{name}%3D0")).collect();
    let oracle = format!("{}?options={}", database.url(), unlimited.join("%20"));
    let campaign = Campaign::new(&oracle, &database.url())
        .await
        .allows(TIMEOUTS, 15)
        .preambles(&["", "", "", "select pg_sleep(0.2)", "select pg_sleep(0.1)"]);
    for setting in settings {
        see.run(&format!("alter database {} set {setting}", database.name()))
            .await;
    }
    campaign.work().await;
    campaign.end().await;
}

/// Nothing is written, nothing is fresh, and the work never runs.
#[tokio::test]
async fn read_only_by_default_is_refused_before_any_work() {
    let (_server, database) = database(None).await;
    let url = database.url();
    let see = Observer::connect(&url).await;
    let done = Intent::new("rejects", "done before", "request").unwrap();
    let once = Once::builder(TokioPostgres::connect(&url, 2))
        .build()
        .unwrap();
    let _ = once.run(&done, pgonce_tests::work).await.unwrap();
    see.run(&format!(
        "alter database {} set default_transaction_read_only = on",
        database.name()
    ))
    .await;
    refused::<TokioPostgres>(&url, &done, &see).await;
    refused::<Sqlx>(&url, &done, &see).await;
}

/// Where nothing can be written: what is finished is answered, everything else refused with 25006.
pub(crate) async fn refused<D: TestDriver>(url: &str, done: &Intent, see: &Observer) {
    let once = Once::builder(D::connect(url, 2)).build().unwrap();
    assert!(once.run(done, pgonce_tests::work).await.unwrap().replayed());
    assert!(once.answer(done).await.unwrap().is_some());
    let before = see.number("select count(*) from effects").await;
    for known_first in [false, true] {
        let mut new = Intent::new("rejects", format!("{} new", D::NAME), "request").unwrap();
        if known_first {
            new = new.known_first();
        }
        let mut ran = 0;
        let run = once.run(&new, |attempt| {
            ran += 1;
            pgonce_tests::work(attempt)
        });
        let error = run.await.unwrap_err();
        assert_eq!((error.code(), ran), ("25006", 0), "{error:?}");
        let length = crate::callers::LEASE;
        let error = once.lease(&new, length).await.unwrap_err();
        assert_eq!(error.code(), "25006", "{error:?}");
        assert!(matches!(error, Error::Database(_)), "{error:?}");
    }
    assert_eq!(see.number("select count(*) from effects").await, before);
}

/// Every encoding that a server can have, and collations that find different texts equal.
#[tokio::test]
async fn other_encodings_and_collations() {
    in_time(async {
        let mut databases = vec![
            "encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'".to_owned(),
            "encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'".to_owned(),
            "encoding 'EUC_JP' lc_collate 'C' lc_ctype 'C'".to_owned(),
        ];
        let server = shared(None).await.unwrap();
        let see = Observer::connect(&server.url()).await;
        let icu = see
            .number("select count(*) from pg_collation where collprovider = 'i'")
            .await;
        if icu > 0 && server.major() >= 15 {
            databases.push("locale_provider icu icu_locale 'en-US-u-ks-level1' lc_collate 'C' lc_ctype 'C'".to_owned());
        }
        for (n, options) in databases.iter().enumerate() {
            let name = format!("encoded_{}_{n}", std::process::id());
            see.run(&format!("create database {name} template template0 {options}"))
                .await;
            let url = server.url_for(&name);
            install(url.clone()).await.unwrap();
            let there = Observer::connect(&url).await;
            if icu > 0 && options.contains("icu") {
                // Keys that differ only in case or accents stay different.
                there
                    .run("create collation loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
                    .await;
                loose_arguments(&there).await;
            }
            let campaign = Campaign::new(&url, &url).await;
            campaign.work().await;
            campaign.end().await;
            drop((campaign, there));
            see.run(&format!("drop database {name} with (force)")).await;
        }
    })
    .await;
}

/// Columns of a collation that finds `a` equal to `A` name intents and messages byte by byte.
async fn loose_arguments(see: &Observer) {
    see.run("create table named (key text collate loose primary key)")
        .await;
    for key in ["a", "A"] {
        see.run(&format!(
            "truncate named; insert into named values ('{key}')"
        ))
        .await;
        for call in [
            "outcome from named, pgonce.claim(key, key, '\\x01', '1 hour', key, key) as c where outcome = 'fresh'",
            "pgonce.heartbeat(key, key, (select fence from pgonce.intent where key = named.key collate \"C\"), '1 hour', key) from named",
            "pgonce.guard(key, key, (select fence from pgonce.intent where key = named.key collate \"C\"), key) from named",
            // The campaign waits until nobody holds a lease.
            "pgonce.release(key, key, (select fence from pgonce.intent where key = named.key collate \"C\"), key) from named",
            "pgonce.accept(key, key, key, null, key) from named",
        ] {
            let sql = format!("select count(*) from (select {call}) as called");
            assert_eq!(see.number(&sql).await, 1, "{key}: {call}");
        }
        let again = "select pgonce.accept(key, key, key, null, key) from named";
        assert_eq!(see.text(again).await, "f", "{key}");
    }
    see.run("drop table named").await;
}

/// Every public function takes texts of any collation, and compares them byte by byte.
#[tokio::test]
async fn texts_of_a_loose_collation_are_arguments_of_every_function() {
    for major in crate::search_path::majors() {
        let (_server, database) = database(major).await;
        let see = Observer::connect(&database.url()).await;
        let icu = "select count(*) from pg_collation where collprovider = 'i'";
        if see.number(icu).await == 0 {
            continue;
        }
        see.run(include_str!("loose.sql")).await;
        let (client, connection) = tokio_postgres::connect(&database.url(), NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        let headers = public_headers();
        let functions = headers.iter().filter(|header| header.kind == "function");
        for header in functions.clone() {
            let mut example = header.section("example").unwrap().to_owned();
            for each in functions.clone() {
                let strict = format!("pgonce.{}(", each.name);
                example = example.replace(&strict, &format!("loose.{}(", each.name));
            }
            assert!(
                example.contains(&format!("loose.{}(", header.name)),
                "the example of {} does not call it",
                header.name
            );
            if let Err(error) = run_example(&client, &example).await {
                panic!("{major:?}, {}: {error:?}", header.name);
            }
        }
        for call in [
            "ledger_open('x', 'EUR', 'DEBIT')",
            "ledger_settle('seed', 'seed', 'POSTED', 1)",
            "create_subscription('x', 'NOW')",
            "grant_to('postgres', 'APP')",
            "intervene('EVICT', 'seed', 'seed', 'x')",
        ] {
            let code = see.code(&format!("select loose.{call}")).await;
            assert_eq!(code, "22023", "{call}");
        }
        for name in ["a", "A"] {
            let open = format!("select loose.ledger_open('{name}', 'EUR', 'debit')::text");
            assert_eq!(see.text(&open).await, "true");
            let moved =
                format!("select version from loose.transition('seed', '{name}', 'open', '{name}')");
            assert_eq!(see.number(&moved).await, 1);
        }
    }
}
