//! Headers, tokens, stored answers and configurations of any shape: read, or refused with a code, and never a panic.

use http::{HeaderMap, HeaderValue};
use pgonce::Fingerprint;
use pgonce_testkit::fuzz;

use crate::status::StatusToken;
use crate::stored::Stored;
use crate::{Caller, Policy, key};

fn policy() -> Policy {
    Policy::new("s", Caller::None)
}

fn read(value: &[u8]) -> Option<Result<Option<std::sync::Arc<str>>, crate::Problem>> {
    let mut headers = HeaderMap::new();
    headers.insert("idempotency-key", HeaderValue::from_bytes(value).ok()?);
    Some(key::read(&headers, &policy()))
}

#[test]
fn fuzz_a_key_header_names_one_key_or_is_refused_with_a_code() {
    let samples = [
        "0190f5a2-7c3e-7000-8000-000000000001",
        "\"abc-1\"",
        "\"a \\\"b\\\" \\\\ ,c\";p=1;q=\"x\"",
        "  abc-1\t",
        "a:b;c=d/e",
        "\"a\", \"b\"",
        ":cHJldGVuZCB0aGlzIGlzIGJpbmFyeQ==:",
        "?1",
        "12.5",
    ];
    fuzz(&samples, 6000, |input| match read(input) {
        None => {}
        Some(Ok(key)) => {
            let key = key.unwrap();
            assert!((1..=255).contains(&key.len()) && key.is_ascii());
            // Written as a structured-field string it is the same key.
            let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
            assert_eq!(read(quoted.as_bytes()).unwrap().unwrap().unwrap(), key);
            let stored = key::stored(&key, "POST /", Some("ada"));
            assert!(stored.len() <= pgonce::MAX_NAME_BYTES);
        }
        Some(Err(problem)) => {
            assert_eq!(problem.status(), 400);
            assert!(["22023", "P4001"].contains(&problem.code()), "{problem:?}");
        }
    });
}

#[test]
fn fuzz_a_stored_key_fits_whatever_is_in_it() {
    fuzz(&["k", "\u{1f600}\u{e9}"], 2000, |input| {
        let text = String::from_utf8_lossy(input);
        let stored = key::stored(&text, &text, Some(&text));
        assert!(stored.len() <= pgonce::MAX_NAME_BYTES);
        assert_ne!(stored, key::stored(&text, &text, None));
    });
}

#[test]
fn fuzz_a_status_token_is_read_back_or_is_none() {
    let print = Fingerprint::of("body").unwrap();
    let StatusToken(token) = StatusToken::new("k", "POST /", &print);
    fuzz(&[token.as_str(), "W10", ""], 3000, |input| {
        let text = String::from_utf8_lossy(input);
        let _ = StatusToken::read(&text);
        let print = Fingerprint::custom(input);
        let StatusToken(token) = StatusToken::new(&text, "POST /", &print);
        let (key, operation, same) = StatusToken::read(&token).unwrap();
        assert_eq!((&*key, &*operation, same), (&*text, "POST /", print));
    });
}

#[test]
fn fuzz_a_stored_answer_is_replayed_or_is_none() {
    let samples = [
        r#"{"http":1,"status":201,"headers":[["content-type","text/plain"]],"body":"ok","expires":1700000000}"#,
        r#"{"http":1,"status":200,"body":{"base64":"AAEC"},"trailers":[["grpc-status","0"]]}"#,
        r#"{"http":1,"status":204,"unkept":true}"#,
        r#"{"http":2,"status":200}"#,
    ];
    let policy = policy();
    fuzz(&samples, 4000, |input| {
        let Ok(value) = serde_json::from_slice(input) else {
            return;
        };
        if let Some(response) = Stored::read(&value).and_then(|stored| stored.replay(&policy, None))
        {
            assert!((100..1000).contains(&response.status().as_u16()));
        }
    });
}

#[cfg(feature = "gateway")]
#[test]
fn fuzz_a_configuration_of_the_gateway_is_read_or_every_fault_has_its_place() {
    use crate::gateway::{Config, EXAMPLE};
    let samples = [
        EXAMPLE,
        "[listen]\naddress = \"127.0.0.1:0\"\n[upstreams.a]\nurl = \"http://127.0.0.1:1\"\n[[routes]]\npath = \"/{*rest}\"\nupstream = \"a\"\n",
        "[[routes]]\npath = \"/orders/{id}\"\nmethods = [\"POST\"]\n",
    ];
    fuzz(&samples, 800, |input| {
        let text = String::from_utf8_lossy(input);
        let Err(faults) = Config::parse("gateway.toml", &text) else {
            return;
        };
        let lines = text.split('\n').count();
        assert!(faults.iter().next().is_some());
        for fault in faults.iter() {
            assert!(
                (1..=lines).contains(&fault.line) && fault.column >= 1,
                "{fault:?}"
            );
            assert!(!fault.what.is_empty());
        }
        assert!(faults.to_string().starts_with("gateway.toml:"));
    });
}
