//! What cannot work is refused before anything is sent, by name and with what would work.

use pgonce_broker::sinks::{AnySink, Options, SCHEMES, open};

async fn refusal(url: &str, options: &Options) -> pgonce_broker::sinks::Refusal {
    match open(url, options).await {
        Ok(sink) => panic!("{url} was opened as {sink:?}"),
        Err(refusal) => refusal,
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_url_is_said_with_what_would_be_right() {
    for (url, code, words) in [
        ("pigeon://roof", "sink-unknown-scheme", "nats+tls"),
        ("localhost", "sink-unknown-scheme", "amqp"),
        ("", "sink-unknown-scheme", "stdout"),
        ("nats://", "sink-bad-url", "nats://host:4222"),
        ("nats://h", "sink-missing-option", "\"stream\""),
        (
            "nats://h?stream=S&sbject=x",
            "sink-unknown-option",
            "stream, subject",
        ),
        (
            "nats://h?stream=S&subject={tpoic}",
            "sink-bad-option",
            "{topic}, {type}",
        ),
        ("nats://h?stream=S&timeout=soon", "sink-bad-option", "500ms"),
        ("amqp://h", "sink-missing-option", "\"exchange\""),
        ("redis://h?maxlen=many", "sink-bad-option", "a number"),
        ("redis://h?maxlen=1&maxlen=2", "sink-bad-option", "once"),
        ("stdout:?stream=x", "sink-unknown-option", "source"),
        ("https://1.1.1.1/", "sink-missing-option", "\"secret\""),
        ("http://1.1.1.1/", "sink-refused", "allow_http"),
    ] {
        let refusal = refusal(url, &Options::new()).await;
        assert_eq!(refusal.code(), code, "{url}: {refusal}");
        assert!(refusal.to_string().contains(words), "{url}: {refusal}");
        assert!(!refusal.may_pass());
    }
    let sink = open("stdout:", &Options::new()).await.unwrap();
    assert!(matches!(sink, AnySink::Stdout(_)));
    assert!(SCHEMES.is_sorted());
}

#[tokio::test]
async fn an_address_where_nobody_answers_is_refused_and_may_be_tried_again() {
    // Bound, and not listening: nobody else gets the port meanwhile.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = nobody.local_addr().unwrap().port();
    for url in [
        format!("nats://127.0.0.1:{port}?stream=S"),
        format!("amqp://127.0.0.1:{port}?exchange=x"),
        format!("redis://127.0.0.1:{port}"),
    ] {
        let refusal = refusal(&url, &Options::new().set("timeout", "5s")).await;
        assert_eq!(refusal.code(), "sink-unreachable", "{url}: {refusal}");
        assert!(refusal.may_pass());
    }
}

#[test]
fn options_can_be_a_table_of_a_file_and_do_not_show_their_values() {
    let text =
        "secret = [\"whsec_a\", \"whsec_b\"]\nmaxlen = 5\nallow_http = true\ntimeout = \"1s\"";
    let options: Options = toml::from_str(text).unwrap();
    let by_hand = Options::new()
        .set("secret", "whsec_a")
        .set("secret", "whsec_b")
        .set("maxlen", "5")
        .set("allow_http", "true")
        .set("timeout", "1s");
    assert_eq!(options, by_hand);
    assert!(!format!("{options:?}").contains("whsec"));
    assert!(toml::from_str::<Options>("secret = { a = 1 }").is_err());
}
