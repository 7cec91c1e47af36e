//! One request has one fingerprint, in Rust and in SQL; docs/src/reference/fingerprints.json says which.

use pgonce::Fingerprint;
use pgonce::driver::sqlx::Sqlx;
use pgonce_tests::{Observer, Setting, World, in_time, runner};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde::Deserialize;
use serde_json::{Number, Value, json};

#[derive(Deserialize)]
struct Vector {
    json: String,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    version: String,
    canonical: String,
    sha256: String,
}

fn vectors() -> Vec<Vector> {
    serde_json::from_str(include_str!("../../docs/src/reference/fingerprints.json")).unwrap()
}

fn hex(print: &Fingerprint) -> String {
    print
        .as_bytes()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Fingerprints and canonical texts of JSON texts, by SQL.
async fn by_sql(see: &Observer, texts: &[String]) -> Vec<[String; 2]> {
    let texts: Vec<_> = texts.iter().map(|text| quoted(text)).collect();
    let rows = see
        .rows(&format!(
            "select encode(pgonce.fingerprint(t.json::jsonb), 'hex'), pgonce._canonical_json(t.json::jsonb)
               from unnest(array[{}]::text[]) with ordinality t (json, n) order by t.n",
            texts.join(",")
        ))
        .await;
    assert_eq!(rows.len(), texts.len());
    rows.into_iter()
        .map(|row| [row[0].clone().unwrap(), row[1].clone().unwrap()])
        .collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Compares Rust with SQL on the texts that serde_json writes.
async fn both_agree_on(see: &Observer, values: &[Value]) {
    for some in values.chunks(2_000) {
        let texts: Vec<_> = some.iter().map(Value::to_string).collect();
        for (value, sql) in some.iter().zip(by_sql(see, &texts).await) {
            let rust = hex(&Fingerprint::of(value).unwrap());
            assert_eq!(rust, sql[0], "{value}: by SQL {}", sql[1]);
        }
    }
}

#[test]
fn rust_gives_the_documented_fingerprints() {
    for vector in vectors() {
        let value: Value = serde_json::from_str(&vector.json).unwrap();
        let print = Fingerprint::canon()
            .operation(vector.operation.as_str())
            .version(vector.version.as_str())
            .of(&value)
            .unwrap();
        assert_eq!(hex(&print), vector.sha256, "{}", vector.json);
        if vector.operation.is_empty() && vector.version.is_empty() {
            let plain = Fingerprint::of_bytes(vector.canonical.as_bytes());
            assert_eq!(
                print, plain,
                "{} is the SHA-256 of its canonical text",
                vector.json
            );
        }
    }
}

#[tokio::test]
async fn sql_gives_the_documented_fingerprints_whatever_the_session_is_set_to() {
    for setting in Setting::all()
        .into_iter()
        .filter(|setting| !setting.pooler)
        .step_by(3)
    {
        let world = World::<Sqlx>::in_setting(setting).await;
        for hostile in [
            "reset all",
            // Would change the text of doubles, and what names mean.
            "set extra_float_digits = -15;
             create schema hostile;
             create function hostile.sha256(bytea) returns bytea language sql return '\\x00'::bytea;
             create function hostile.scale(numeric) returns integer language sql return 7;
             set search_path = hostile, pg_catalog, public",
        ] {
            world.see.run(hostile).await;
            for vector in vectors() {
                let [json, operation, version] =
                    [&vector.json, &vector.operation, &vector.version].map(|text| quoted(text));
                let rows = world
                    .see
                    .rows(&format!(
                        "select encode(pgonce.fingerprint({json}, {operation}, {version}), 'hex'),
                                pgonce._canonical_json({json})"
                    ))
                    .await;
                assert_eq!(
                    rows[0][1].as_deref(),
                    Some(&*vector.canonical),
                    "{}",
                    vector.json
                );
                assert_eq!(
                    rows[0][0].as_deref(),
                    Some(&*vector.sha256),
                    "{}",
                    vector.json
                );
            }
        }
    }
}

#[tokio::test]
async fn rust_and_sql_agree_on_every_kind_of_number() {
    let world = World::<Sqlx>::new().await;
    let mut numbers = Vec::new();
    // Every power of two: only there do the two halves of a double's interval differ.
    for exponent in -1074..=1023 {
        let power = 2_f64.powi(exponent);
        numbers.extend([
            power,
            power.next_down(),
            power.next_up(),
            -power,
            power * 3.0,
            power * 5.0,
        ]);
    }
    for exponent in -324..=308 {
        let power: f64 = format!("1e{exponent}").parse().unwrap();
        numbers.extend([
            power,
            power.next_down(),
            power.next_up(),
            -power,
            power * 7.0,
        ]);
    }
    let mut random = pgonce_tests::random();
    numbers.extend((0..20_000).map(|_| f64::from_bits(random.random())));
    numbers.extend((0..5_000).map(|_| random.random::<f64>()));
    let mut values: Vec<_> = numbers
        .into_iter()
        .filter_map(Number::from_f64)
        .map(Value::Number)
        .collect();
    for bits in 0..64 {
        let power = 1_u64 << bits;
        values.extend([
            json!(power),
            json!(power - 1),
            json!(-(power as i64 / 2)),
            json!(power | random.random::<u64>()),
        ]);
    }
    in_time(both_agree_on(&world.see, &values)).await;
}

#[tokio::test]
async fn rust_and_sql_agree_on_random_requests() {
    let world = World::<Sqlx>::new().await;
    let mut runner = runner(1);
    let values: Vec<_> = (0..3_000)
        .map(|_| requests().new_tree(&mut runner).unwrap().current())
        .collect();
    in_time(both_agree_on(&world.see, &values)).await;
}

/// Random JSON that jsonb can hold: all but the character NUL.
fn requests() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[^\u{0}]{0,8}",
        "[a-z]{1,3}",
        "[\u{1}-\u{20}\u{d7fe}-\u{d7ff}\u{e000}-\u{e001}\u{fffe}-\u{10001}\u{10fffe}-\u{10ffff}\"\\\\]{0,3}"
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-1_000..1_000_i32).prop_map(|n| json!(f64::from(n) / 100.0)),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(text.clone(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

#[test]
fn a_number_that_json_cannot_carry_is_refused_wherever_it_is() {
    #[derive(serde::Serialize)]
    enum Amount {
        Of(f64),
        Range { from: f32, to: Option<f64> },
    }
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        Fingerprint::of(&bad).unwrap_err();
        Fingerprint::of(&(bad as f32)).unwrap_err();
        Fingerprint::of(&vec![Some(bad)]).unwrap_err();
        Fingerprint::of(&Amount::Of(bad)).unwrap_err();
        Fingerprint::of(&Amount::Range {
            from: bad as f32,
            to: None,
        })
        .unwrap_err();
        Fingerprint::of(&std::collections::BTreeMap::from([("a", (1, bad))])).unwrap_err();
    }
    Fingerprint::of(&(u128::from(u64::MAX) + 1)).unwrap_err();
    Fingerprint::of(&(i128::from(i64::MIN) - 1)).unwrap_err();
    let range = Amount::Range {
        from: 0.1,
        to: Some(2.0),
    };
    assert_eq!(
        Fingerprint::of(&range).unwrap(),
        Fingerprint::of_bytes(br#"{"Range":{"from":0.1,"to":2}}"#)
    );
    assert_eq!(
        Fingerprint::of(&7_u128).unwrap(),
        Fingerprint::of_bytes(b"7")
    );
}

#[tokio::test]
async fn sql_refuses_a_number_beyond_a_double_and_passes_null_on() {
    let world = World::<Sqlx>::new().await;
    assert_eq!(
        world.see.code("select pgonce.fingerprint('1e400')").await,
        "22003"
    );
    assert_eq!(
        world
            .see
            .code("select pgonce.fingerprint('[-1e309]')")
            .await,
        "22003"
    );
    let rows = world.see.rows("select pgonce.fingerprint(null)").await;
    assert_eq!(rows, [[None]]);
}
