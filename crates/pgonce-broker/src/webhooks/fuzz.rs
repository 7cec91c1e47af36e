//! Webhooks of anybody: who signed is let in, nobody else is, and every refusal has a code.

use std::time::{Duration, UNIX_EPOCH};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgonce::inbox::Message;
use pgonce::unstable::json;
use pgonce_testkit::fuzz;
use ring::hmac;

use super::{Encoding, Scheme};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const TIME: &str = "1700000000";
const CODES: [&str; 4] = [
    "signature_missing",
    "signature_wrong",
    "timestamp_missing",
    "timestamp_outside_window",
];

fn schemes() -> [Scheme; 4] {
    [
        Scheme::standard([SECRET, "whpk_MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqA="])
            .or_else(|_| Scheme::standard([SECRET]))
            .unwrap(),
        Scheme::hmac(["s"], "x-signature", Encoding::Hex).prefixed("sha256="),
        Scheme::hmac(["s"], "x-signature", Encoding::Hex)
            .fields("t", "v1")
            .id_pointer("/id"),
        Scheme::hmac(["s"], "x-signature", Encoding::Base64).time_header("x-time"),
    ]
}

fn headers(pairs: &[(&'static str, &[u8])]) -> Option<HeaderMap> {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = HeaderValue::from_bytes(value).ok()?;
        Some((HeaderName::from_static(name), value))
    });
    pairs.collect()
}

/// No key that the schemes know made it.
#[test]
fn fuzz_what_nobody_signed_is_refused_with_a_code() {
    let samples = [
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "v1,AAAA v1a,AAAA v2,x",
        "sha256=00ff",
        "t=1700000000,v1=00ff,v1=zz",
        "1700000000",
        "-1",
        "18446744073709551615",
        "{\"id\": 7}",
    ];
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let schemes = schemes();
    fuzz(&samples, 4000, |input| {
        for times in [TIME.as_bytes(), input] {
            let found = headers(&[
                ("webhook-id", input),
                ("webhook-timestamp", times),
                ("webhook-signature", input),
                ("x-signature", input),
                ("x-time", times),
            ]);
            let Some(found) = found else { return };
            for scheme in &schemes {
                let refused = scheme.verify_at(&found, input, now).unwrap_err();
                assert!(CODES.contains(&refused.code), "{refused:?}");
                let refused = scheme.verify_at(&HeaderMap::new(), input, now).unwrap_err();
                assert_eq!(refused.code, "signature_missing");
            }
        }
    });
}

#[test]
fn fuzz_a_signed_body_is_accepted_and_no_other_is() {
    let key = STANDARD
        .decode(SECRET.trim_start_matches("whsec_"))
        .unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let scheme = Scheme::standard([SECRET]).unwrap();
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_100);
    fuzz(
        &["{\"id\": \"msg_1\", \"n\": 1}", "not JSON", "."],
        2000,
        |body| {
            let signed = [b"msg_1.".as_slice(), TIME.as_bytes(), b".", body].concat();
            let signature = STANDARD.encode(hmac::sign(&key, &signed));
            let with = |id: &str, time: &str, signature: &str| {
                headers(&[
                    ("webhook-id", id.as_bytes()),
                    ("webhook-timestamp", time.as_bytes()),
                    (
                        "webhook-signature",
                        format!("v2,x v1,AAAA v1,{signature}").as_bytes(),
                    ),
                ])
                .unwrap()
            };
            let good = with("msg_1", TIME, &signature);
            assert_eq!(scheme.verify_at(&good, body, now).as_deref(), Ok("msg_1"));
            let wrong = |headers: &HeaderMap, body: &[u8]| {
                let refused = scheme.verify_at(headers, body, now).unwrap_err();
                assert_eq!(refused.code, "signature_wrong");
            };
            let mut longer = body.to_vec();
            longer.push(b' ');
            wrong(&good, &longer);
            if let Some((last, shorter)) = body.split_last() {
                wrong(&good, shorter);
                wrong(&good, &[shorter, &[last ^ 1]].concat());
            }
            wrong(&with("msg_2", TIME, &signature), body);
            wrong(&with("msg_1", "1700000001", &signature), body);
            let late = now + Duration::from_secs(301);
            let refused = scheme.verify_at(&good, body, late).unwrap_err();
            assert_eq!(refused.code, "timestamp_outside_window");
        },
    );
}

#[test]
fn fuzz_a_secret_is_a_key_or_refused() {
    let samples = [
        SECRET,
        "whpk_",
        "whsec_",
        "whpk_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "AAAA",
    ];
    fuzz(&samples, 2000, |input| {
        let text = String::from_utf8_lossy(input);
        if let Err(refused) = Scheme::standard([&*text]) {
            assert_eq!(refused.code, "secret");
            assert!(
                text.len() < 12 || !refused.reason.contains(&*text),
                "{refused}"
            );
        }
    });
}

#[test]
fn fuzz_a_cloud_event_is_read_or_refused() {
    let samples = [
        "{\"specversion\": \"1.0\", \"id\": \"7\", \"type\": \"t\", \"subject\": \"s\", \"tenant\": \"a\", \"data\": {\"n\": 1}, \"x\": []}",
        "{\"specversion\": \"1.0\", \"id\": 7}",
    ];
    fuzz(&samples, 3000, |input| {
        let mut message = Message::new("came", input);
        match crate::cloud_event(&mut message) {
            Ok(()) => {
                // What is left is the data, as JSON.
                let read = |text: &[u8]| json::read(str::from_utf8(text).unwrap()).unwrap();
                let (data, event) = (read(&message.payload), read(input));
                assert_eq!(data, event.get("data").cloned().unwrap_or_default());
                assert_eq!(event["id"], message.id);
            }
            Err(why) => assert!(!why.is_empty() && message.id == "came"),
        }
    });
}
