//! What is wrong with a file is found, and its place is shown.

use super::{Config, EXAMPLE};

#[test]
fn the_example_is_right_and_shows_the_defaults() {
    let config = Config::parse("gateway.toml", EXAMPLE).unwrap();
    let summary = config.summary();
    assert_eq!((summary.routes, summary.once, summary.scopes), (2, 1, 1));
    // The same without every line that the example says could be left out.
    let short = Config::parse("gateway.toml", &minimal("")).unwrap();
    let (shown, left_out) = (
        format!("{:?}", config.tables.listen),
        format!("{:?}", short.tables.listen),
    );
    let without_places = |text: String| {
        let mut text = text;
        while let Some(start) = text.find("span: ") {
            let end = start + text[start..].find(',').unwrap();
            text.replace_range(start..end, "");
        }
        text
    };
    assert_eq!(without_places(shown), without_places(left_out));
    // An orchestrator kills after 30 seconds: what is in progress has to be over by then.
    assert!(short.tables.listen.drain_timeout.0 < std::time::Duration::from_secs(30));
    let tables = |config: &Config| {
        let tables = &config.tables;
        without_places(format!(
            "{:?} {:?} {:?}",
            tables.database, tables.log, tables.upstreams
        ))
    };
    assert_eq!(
        tables(&config).replace(
            "url_env: Some(Spanned { , value: \"DATABASE_URL\" })",
            "url_env: None"
        ),
        tables(&short)
    );
}

/// As little as there can be, and more.
fn minimal(more: &str) -> String {
    format!(
        "listen.address = \"127.0.0.1:8080\"\nupstreams.shop.url = \"http://127.0.0.1:9000\"\n\
         scopes.s.retention = \"1d\"\n[[routes]]\npath = \"/a\"\nupstream = \"shop\"\n{more}"
    )
}

/// A second route that happens once.
fn once(route: &str, once: &str) -> String {
    minimal(&format!(
        "[[routes]]\npath = \"/b\"\nupstream = \"shop\"\n{route}\n[routes.once]\n{once}"
    ))
}

#[track_caller]
fn assert_refused(text: &str, place: &str, what: &str, hint: &str) {
    let faults = Config::parse("f", text).expect_err(text);
    let fault = faults.iter().next().unwrap();
    let found = format!("{}:{}", fault.line, fault.column);
    assert!(
        found == place && fault.what.contains(what) && fault.hint.contains(hint),
        "{text}\n{faults}"
    );
}

#[test]
fn every_fault_is_shown_where_it_is_with_what_to_do() {
    let example = "--print-example";
    // text, line and column, what is wrong, what to do
    for (text, place, what, hint) in [
        (String::new(), "1:1", "missing field `listen`", example),
        ("listen =".to_owned(), "1:9", "", example),
        (
            minimal("color = 1"),
            "7:1",
            "unknown field `color`, expected one of `path`",
            example,
        ),
        (minimal("[listn]"), "7:2", "unknown field `listn`", example),
        (
            minimal("methods = [\"post\"]"),
            "7:12",
            "\"post\" is no method, expected a method in capitals",
            example,
        ),
        (
            minimal("methods = [\"CONNECT\"]"),
            "7:12",
            "tunnels",
            "Leave CONNECT out",
        ),
        (
            minimal("[[routes]]\npath = \"b\"\nupstream = \"shop\""),
            "8:8",
            "does not begin with a slash",
            example,
        ),
        (
            minimal("[[routes]]\npath = \"/{*r}/b\"\nupstream = \"shop\""),
            "8:8",
            "the end of the path",
            example,
        ),
        (
            minimal("[[routes]]\npath = \"/b\"\nupstream = \"shpo\""),
            "9:12",
            "no upstream \"shpo\"",
            "\"shop\"",
        ),
        (
            minimal("[[routes]]\npath = \"/a\"\nupstream = \"shop\""),
            "8:8",
            "/a and /a (line 5) match",
            "different methods",
        ),
        (
            minimal(
                "[[routes]]\npath = \"/x/{y}\"\nupstream = \"shop\"\n[[routes]]\npath = \"/{x}/y\"\nupstream = \"shop\"",
            ),
            "11:8",
            "neither is the narrower",
            "the narrower holds",
        ),
        (
            minimal("[scopes.t]\nretention = \"30\""),
            "8:13",
            "is no length of time",
            example,
        ),
        (
            minimal("[scopes.t]\nretention = 30"),
            "8:13",
            "expected a length of time such as",
            example,
        ),
        (
            minimal("[scopes.t]\nretention = \"0s\""),
            "8:13",
            "for no time",
            "7d",
        ),
        (
            minimal("[scopes.t]"),
            "7:1",
            "missing field `retention`",
            example,
        ),
        (
            minimal("[scopes.\"\"]\nretention = \"1d\""),
            "7:9",
            "1 to 255 bytes",
            "orders.create",
        ),
        (
            minimal("[scopes.t]\nretention = \"1d\"\nclient_retry = \"2d\""),
            "9:16",
            "longer than answers are kept",
            "retention",
        ),
        (
            minimal("[scopes.t]\nretention = \"1d\"\nwait_timeout = \"2s\""),
            "9:16",
            "duplicates wait only",
            "busy = \"wait\"",
        ),
        (
            minimal("[scopes.t]\nretention = \"1d\"\ntombstone_for = \"2d\""),
            "9:17",
            "no tombstone",
            "gone",
        ),
        (
            minimal("[scopes.t]\nretention = \"1d\"\nstale = \"guess\""),
            "9:9",
            "unknown variant `guess`, expected one of",
            example,
        ),
        (
            minimal("[upstreams.t]\nurl = \"ftp://x\""),
            "8:7",
            "neither http nor https",
            example,
        ),
        (
            minimal("[upstreams.t]\nurl = \"http://me:secret@x\""),
            "8:7",
            "a secret in this file",
            example,
        ),
        (
            minimal("[upstreams.t]\nurl = \"http://x/?a\""),
            "8:7",
            "a query",
            example,
        ),
        (
            minimal("[upstreams.t]\nurl = \"/orders\""),
            "8:7",
            "has no host",
            example,
        ),
        (
            minimal("[upstreams.t]\nurl = \"http://x\"\nca_file = \"ca.pem\""),
            "9:11",
            "without TLS",
            "https://",
        ),
        (
            minimal("[upstreams.t]\nurl = \"https://x\"\nca_file = \"no/such.pem\""),
            "9:11",
            "cannot be read",
            "PEM",
        ),
        (
            minimal("[upstreams.t]\nurl = \"http://x\"\nconnect_timeout = \"40s\""),
            "9:19",
            "not shorter than `response_timeout`",
            "shorter",
        ),
        (
            minimal("[database]\nurl_env = \"A\"\nurl_file = \"b\""),
            "9:12",
            "in two places",
            "Keep one",
        ),
        (
            minimal("[database]\nurl = \"postgres://x\""),
            "8:1",
            "unknown field `url`",
            example,
        ),
        (
            minimal("[database]\nconnections = 0"),
            "8:15",
            "no claim could be made",
            "1 or more",
        ),
        (
            minimal("[log]\nlevel = \"loud\""),
            "8:9",
            "unknown variant `loud`",
            example,
        ),
        (
            minimal("").replace(
                "\nupstreams",
                "\nlisten.admin = \"127.0.0.1:8080\"\nupstreams",
            ),
            "2:16",
            "cannot both be served",
            "another port",
        ),
        (
            minimal("").replace("\nupstreams", "\nlisten.max_connections = 0\nupstreams"),
            "2:26",
            "no request could be served",
            "1 or more",
        ),
        (
            minimal("").replace(
                "\nupstreams",
                "\nlisten.max_header_bytes = \"1 KiB\"\nupstreams",
            ),
            "2:27",
            "so few bytes",
            "8 KiB",
        ),
        (
            minimal("").replace("\nupstreams", "\nlisten.memory = \"much\"\nupstreams"),
            "2:17",
            "\"much\" is no size, expected a size such as",
            example,
        ),
        (
            once("methods = [\"POST\"]", "principal = \"none\""),
            "11:1",
            "missing field `scope`",
            example,
        ),
        (
            once("methods = [\"POST\"]", "scope = \"s\""),
            "11:1",
            "missing field `principal`",
            example,
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"t\"\nprincipal = \"none\"",
            ),
            "12:9",
            "no scope \"t\"",
            "\"s\"",
        ),
        (
            once("", "scope = \"s\"\nprincipal = \"none\""),
            "8:8",
            "must say for which methods",
            "POST",
        ),
        (
            once("methods = [\"GET\"]", "scope = \"s\"\nprincipal = \"none\""),
            "10:12",
            "GET only reads",
            "Leave it out",
        ),
        (
            once("methods = [\"POST\"]", "scope = \"s\"\nprincipal = \"ada\""),
            "13:13",
            "expected \"none\", or { header",
            example,
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = { header = \"Authorization\" }",
            ),
            "13:13",
            "carries a credential",
            "X-User-Id",
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = { header = \"no header\" }",
            ),
            "13:24",
            "is no name of a header",
            example,
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = \"none\"\nmax_body = \"5 GiB\"",
            ),
            "14:12",
            "held in memory",
            "4 GiB",
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = \"none\"\ntenant = { header = \"X-Api-Key\" }",
            ),
            "14:10",
            "carries a credential",
            "X-User-Id",
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = \"none\"\nmax_response = \"0 B\"",
            ),
            "14:16",
            "no bytes",
            "1 MiB",
        ),
        (
            minimal("").replace("\nupstreams", "\nlisten.memory = \"0 B\"\nupstreams"),
            "2:17",
            "no bytes",
            example,
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = \"none\"\nmax_body = \"1 KiB\"",
            )
            .replace("\nupstreams", "\nlisten.memory = \"17407 B\"\nupstreams"),
            "2:17",
            "would always be answered with 503",
            "17408 bytes or more",
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = \"none\"\nmax_body = \"1 GiB\"",
            ),
            "14:12",
            "would always be answered with 503",
            "1073758208 bytes or more",
        ),
        (
            minimal("").replace("\nupstreams", "\nlisten.body_timeout = \"0s\"\nupstreams"),
            "2:23",
            "no time",
            example,
        ),
        (
            minimal("[database]\ntimeout = \"0s\""),
            "8:11",
            "no time",
            example,
        ),
        (
            minimal("[upstreams.t]\nurl = \"http://x\"\nresponse_timeout = \"0s\""),
            "9:20",
            "no time",
            example,
        ),
        (
            minimal("[upstreams.t]\nurl = \"http://x\"\nconnect_timeout = \"0s\""),
            "9:19",
            "in no time",
            "2s",
        ),
        (
            minimal("[scopes.t]\nretention = \"1d\"\nlease = \"0s\""),
            "9:9",
            "a lease of no time",
            "30s",
        ),
        (
            once(
                "methods = [\"POST\"]",
                "scope = \"s\"\nprincipal = \"none\"\nfingerprint = { only = [\"id\"] }",
            ),
            "14:15",
            "is no JSON pointer",
            example,
        ),
    ] {
        assert_refused(&text, place, what, hint);
    }
}

#[test]
fn all_faults_between_fields_are_reported_at_once() {
    let text = minimal(
        "[[routes]]\npath = \"/a\"\nupstream = \"x\"\n[[routes]]\npath = \"/c\"\nupstream = \"y\"",
    );
    let faults = Config::parse("f", &text).unwrap_err();
    let places: Vec<_> = faults
        .iter()
        .map(|fault| (fault.line, fault.column))
        .collect();
    assert_eq!(places, [(8, 8), (9, 12), (12, 12)]);
}

#[test]
fn no_routes_are_a_fault() {
    let text = "listen.address = \"127.0.0.1:8080\"";
    assert_refused(text, "1:1", "no routes", "[[routes]]");
}
