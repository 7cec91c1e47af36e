//! Keys are bytes: whatever they look like, they come back as they went in and meet only themselves.

use pgonce::driver::sqlx::Sqlx;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::{Ack, Intent, Isolation, Once};
use pgonce_tests::{Setting, TestDriver, World, effect, for_each_driver, runner};
use proptest::prelude::*;

const HOSTILE: &[&str] = &[
    "'",
    "''",
    "\\",
    "\\'",
    "\\\\'",
    "'; drop table effects; --",
    "$1",
    "$$",
    "$a$",
    "%s",
    "{}",
    "\"",
    "`",
    "E'",
    "'||'",
    "\\x41",
    "\\u0041",
    "\u{1}",
    "\u{1f}",
    "\t\n\r",
    " ",
    "  ",
    "null",
    "é",
    "e\u{301}",
    "ﬀ",
    "😀",
    "\u{202e}x",
    "\u{feff}",
    "?",
    ":a",
    "@",
    "/* */",
    "--",
    ";",
    "commit",
    "\u{10ffff}",
    "ß",
    "ı",
    "İ",
];

async fn round_trip<D: TestDriver>(world: &World<D>, once: &Once<D>, key: &str, tenant: &str) {
    let request = Intent::new(key, key, key)
        .unwrap()
        .tenant(tenant)
        .unwrap()
        .correlation(key);
    let run = || {
        once.run(&request, |mut attempt| async move {
            effect(&mut attempt).await?;
            attempt
                .succeed(Ack::value(key)?.and_reference(key, key))
                .await
        })
    };
    let first = run()
        .await
        .unwrap_or_else(|error| panic!("{key:?}: {error:?}"));
    let again = run()
        .await
        .unwrap_or_else(|error| panic!("{key:?}: {error:?}"));
    assert!(!first.replayed() && again.replayed(), "{key:?}");
    assert_eq!(again.read::<String>().unwrap(), key);
    assert_eq!(again.ack().reference(), Some((key, key)));
    assert_eq!(world.see.effects(&request).await, 1, "{key:?}");
    assert_eq!(world.see.records(&request).await, 1, "{key:?}");
}

async fn hostile_keys_are_only_keys<D: TestDriver>(world: World<D>) {
    for conforming in ["on", "off"] {
        let name = world.database();
        world
            .see
            .run(&format!(
                "alter database \"{name}\" set standard_conforming_strings = {conforming}"
            ))
            .await;
        let once = world.another("hostile", 2, |b| b);
        for key in HOSTILE {
            round_trip(&world, &once, key, conforming).await;
        }
    }
    assert_eq!(
        world.see.number("select count(*) from effects").await,
        2 * HOSTILE.len() as i64
    );
}

async fn hostile_keys_are_only_keys_behind_a_pooler<D: TestDriver>() {
    let setting = Setting {
        major: None,
        isolation: Isolation::ReadCommitted,
        pooler: true,
    };
    let world = World::<D>::in_setting(setting).await;
    for key in HOSTILE {
        round_trip(&world, &world.once, key, "").await;
    }
}

#[tokio::test]
async fn hostile_keys_are_only_keys_behind_a_pooler_too() {
    hostile_keys_are_only_keys_behind_a_pooler::<Sqlx>().await;
    hostile_keys_are_only_keys_behind_a_pooler::<TokioPostgres>().await;
}

async fn keys_that_only_look_alike_are_different<D: TestDriver>(world: World<D>) {
    let alike = [
        "key",
        "KEY",
        "Key",
        "key ",
        " key",
        "key\t",
        "kéy",
        "ke\u{301}y",
        "k\u{e9}y ",
        "ｋｅｙ",
        "key\u{200b}",
    ];
    for key in alike {
        let request = Intent::new("s", key, "r").unwrap();
        let replayed = world.run(&request).await.unwrap().replayed();
        assert!(!replayed, "{key:?}");
    }
}

/// Any text that can be a name.
fn any_key() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop_oneof![
            any::<char>(),
            prop::sample::select(vec!['\'', '\\', '"', '$', ';', ' '])
        ],
        1..60,
    )
    .prop_map(|letters| {
        letters
            .into_iter()
            .filter(|letter| *letter != '\0')
            .collect::<String>()
    })
    .prop_filter("a name has 1 to 255 bytes", |key| {
        (1..=255).contains(&key.len())
    })
}

fn any_key_makes_the_round_trip<D: TestDriver>() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = runtime.block_on(World::<D>::new());
    let count = std::cell::Cell::new(0);
    runner(60)
        .run(&any_key(), |key| {
            count.set(count.get() + 1);
            runtime.block_on(round_trip(
                &world,
                &world.once,
                &key,
                &format!("case {}", count.get()),
            ));
            Ok(())
        })
        .unwrap();
}

#[test]
fn any_key_makes_the_round_trip_with_sqlx() {
    any_key_makes_the_round_trip::<Sqlx>();
}

#[test]
fn any_key_makes_the_round_trip_with_tokio_postgres() {
    any_key_makes_the_round_trip::<TokioPostgres>();
}

for_each_driver!(
    hostile_keys_are_only_keys,
    keys_that_only_look_alike_are_different
);
