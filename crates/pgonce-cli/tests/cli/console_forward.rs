//! The console behind a proxy that signs people in: whose headers count, and what they allow.

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::console::{ACTS, ADMIN, OPERATOR, VIEWER, fill};
use crate::fixture::{Fixture, Run, program};
use crate::serve::{Serving, TOKENS};

const SECRET: &str = "secret-of-the-proxy-0123456789";
const GROUPS: &str = "staff=viewer,sre=operator,platform=admin";

fn serving(fixture: &Fixture, flags: &[&str], secret: &str, tokens: &str) -> Serving {
    let usual = ["serve", "--format", "json", "--listen", "127.0.0.1:0"];
    let groups = ["--roles", "console", "--console-groups", GROUPS];
    let mut command = fixture.command(&[&usual[..], &groups[..], flags].concat());
    command
        .env("PGONCE_CONSOLE_PROXY_SECRET", secret)
        .env("PGONCE_CONSOLE_TOKENS", tokens);
    Serving::start(command)
}

/// As the proxy sends it.
fn sent_by_proxy(request: RequestBuilder, user: &str, groups: &str) -> RequestBuilder {
    request
        .header("x-pgonce-proxy-secret", SECRET)
        .header("x-forwarded-user", user)
        .header("x-forwarded-groups", groups)
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn headers_that_did_not_come_from_the_proxy_let_nobody_in() {
    let fixture = Fixture::installed().await;
    let by_secret = serving(&fixture, &[], SECRET, "");
    let page = |serving: &Serving| serving.http.get(format!("{}/scopes", serving.url));
    let api = |serving: &Serving| serving.http.get(format!("{}/api/v1/scopes", serving.url));
    let spoofed = |request: RequestBuilder| {
        request
            .header("x-forwarded-user", "adele")
            .header("x-forwarded-groups", "platform")
    };
    for request in [page(&by_secret), api(&by_secret)] {
        assert_eq!(
            status(sent_by_proxy(
                request.try_clone().unwrap(),
                "adele",
                "platform"
            ))
            .await,
            200
        );
        // No header, no name, headers without the secret, with another one, with two.
        assert_eq!(status(request.try_clone().unwrap()).await, 401);
        let nameless = request
            .try_clone()
            .unwrap()
            .header("x-forwarded-groups", "platform");
        assert_eq!(
            status(nameless.header("x-pgonce-proxy-secret", SECRET)).await,
            401
        );
        let bare = spoofed(request.try_clone().unwrap());
        assert_eq!(status(bare.try_clone().unwrap()).await, 401);
        let wrong = bare.header("x-pgonce-proxy-secret", "another-secret-0123456789");
        assert_eq!(status(wrong.try_clone().unwrap()).await, 401);
        assert_eq!(
            status(wrong.header("x-pgonce-proxy-secret", SECRET)).await,
            401
        );
        // Two names: one of them is not the proxy's.
        let two = sent_by_proxy(request.try_clone().unwrap(), "adele", "platform");
        assert_eq!(status(two.header("x-forwarded-user", "bob")).await, 401);
        // Known, and in no group that has a role.
        for groups in ["", "cooks", "admin", "SRE"] {
            let request = sent_by_proxy(request.try_clone().unwrap(), "adele", groups);
            assert_eq!(status(request).await, 403, "{groups}");
        }
    }
    by_secret.logged("did not come from the proxy").await;
    let log = by_secret.log.lock().unwrap().clone();
    assert!(!log.contains(SECRET) && !log.contains("adele"), "{log}");
    // A form of one user is no form of another; see below for a page of another origin.
    assert_eq!(
        status(by_secret.http.post(format!("{}/act/purge", by_secret.url))).await,
        401
    );

    // The proxy is elsewhere: what comes from this machine is not from it, with or without the secret.
    let elsewhere = ["--console-proxies", "192.0.2.0/24, 2001:db8::7"];
    for secret in ["", SECRET] {
        let by_address = serving(&fixture, &elsewhere, secret, "");
        assert_eq!(
            status(sent_by_proxy(page(&by_address), "adele", "platform")).await,
            401
        );
    }
    // It is here: from its address with the secret.
    let here = serving(
        &fixture,
        &["--console-proxies", "127.0.0.0/8"],
        SECRET,
        TOKENS,
    );
    assert_eq!(
        status(sent_by_proxy(page(&here), "adele", "platform")).await,
        200
    );
    assert_eq!(status(spoofed(page(&here))).await, 303);
    // Tokens are for programs that do not come by the proxy.
    assert_eq!(status(api(&here).bearer_auth(VIEWER)).await, 200);
    assert_eq!(status(spoofed(api(&here)).bearer_auth("wrong")).await, 401);
    let passed_on =
        sent_by_proxy(api(&here), "adele", "staff").bearer_auth("a-token-of-the-provider");
    assert_eq!(status(passed_on).await, 200);
}

#[tokio::test]
async fn groups_are_roles_for_every_act_and_forms_need_their_proof() {
    let fixture = Fixture::installed().await;
    fill(&fixture).await;
    let serving = serving(&fixture, &[], SECRET, "");
    let post = |path: &str| serving.http.post(format!("{}{path}", serving.url));
    let ranks = [
        ("staff", VIEWER),
        ("cooks,sre", OPERATOR),
        ("sre,platform", ADMIN),
    ];
    for (act, needed) in ACTS {
        let least = ranks
            .iter()
            .position(|(_, token)| *token == needed)
            .unwrap();
        for (rank, (groups, _)) in ranks.iter().enumerate() {
            let api = post(&format!("/api/v1/act/{act}")).json(&json!({}));
            let api = status(sent_by_proxy(api, "otto", groups)).await;
            assert_eq!(api != 403, rank >= least, "{act} as {groups}: {api}");
        }
    }

    let page = serving
        .http
        .get(format!("{}/intent?scope=s&key=stuck", serving.url));
    let proof = async |user: &str| {
        let page = sent_by_proxy(page.try_clone().unwrap(), user, "sre")
            .send()
            .await
            .unwrap();
        let html = page.text().await.unwrap();
        assert!(html.contains(&format!("{user} \u{b7} operator")) && !html.contains("Sign out"));
        let (_, after) = html.split_once("name=\"csrf\" value=\"").unwrap();
        after.split('"').next().unwrap().to_owned()
    };
    let (otto, eve) = (proof("otto").await, proof("eve").await);
    let settle = async |proof: &str, origin: Option<&str>| {
        let mut form =
            post("/act/settle").header("content-type", "application/x-www-form-urlencoded");
        if let Some(origin) = origin {
            form = form.header("origin", origin);
        }
        let form = form.body(format!(
            "scope=s&key=stuck&reason=ticket+9&answer=1&csrf={proof}"
        ));
        status(sent_by_proxy(form, "otto", "sre")).await
    };
    assert_eq!(settle("", None).await, 403);
    assert_eq!(settle(&eve, None).await, 403);
    assert_eq!(settle(&otto, Some("https://evil.example")).await, 403);
    // A form is no JSON, which alone the API takes.
    let form = post("/api/v1/act/settle").body("scope=s&key=stuck&reason=x");
    assert_eq!(status(sent_by_proxy(form, "otto", "sre")).await, 415);
    assert_eq!(settle(&otto, Some(&serving.url)).await, 303);

    // The name of who did it stands in the audit.
    let query = "select person from pgonce.operator_act where act = 'settle' and key = 'stuck'";
    let row = fixture.client.query_one(query, &[]).await.unwrap();
    assert_eq!(row.get::<_, String>(0), "otto");
    let audit = sent_by_proxy(
        serving.http.get(format!("{}/api/v1/audit", serving.url)),
        "vera",
        "staff",
    );
    let audit: Value = audit.send().await.unwrap().json().await.unwrap();
    let entry = &audit["sections"][0]["rows"][0];
    assert!(
        entry["reason"] == "ticket 9" && entry["who"].as_str().unwrap().starts_with("otto ("),
        "{entry}"
    );
    let answer = sent_by_proxy(post("/api/v1/act/settle"), "vera", "staff")
        .json(&json!({"scope": "s", "key": "second", "reason": "r"}));
    assert_eq!(answer.send().await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[test]
fn what_could_be_spoofed_is_refused_before_anything_listens() {
    let check = |flags: &[&str], secret: &str| {
        let usual = ["config", "check", "--listen", "0.0.0.0:0"];
        let mut command = program(&[&usual[..], flags].concat());
        Run::of(
            command
                .env("PGONCE_CONSOLE_PROXY_SECRET", secret)
                .output()
                .unwrap(),
        )
    };
    let groups = ["--console-groups", GROUPS];
    for (flags, secret, expected) in [
        (&[][..], "", "no authentication"),
        (&[], SECRET, "no group has a role"),
        (
            &["--console-proxies", "10.0.0.7"],
            "",
            "no group has a role",
        ),
        (&groups, "", "anybody could write the headers"),
        (&groups, "short", "16 characters"),
        (&["--console-groups", "sre=chief"], SECRET, "is no role"),
        (&["--console-groups", "sre"], SECRET, "is no role"),
        (&["--console-groups", "=admin"], SECRET, "write group=role"),
        (
            &[groups[0], groups[1], "--console-proxies", "127.0.0.1"],
            "",
            "on loopback",
        ),
        (
            &[groups[0], groups[1], "--console-proxies", "0.0.0.0/0"],
            "",
            "on loopback",
        ),
        (
            &[groups[0], groups[1], "--console-proxies", "proxy.local"],
            "",
            "neither an address nor a network",
        ),
        (
            &[groups[0], groups[1], "--console-user-header", "a b"],
            SECRET,
            "no name of a header",
        ),
        (
            &[
                groups[0],
                groups[1],
                "--console-user-header",
                "X-Forwarded-Groups",
            ],
            SECRET,
            "one header",
        ),
    ] {
        let run = check(flags, secret);
        assert!(
            run.code == 2 && run.err.contains(expected),
            "{flags:?}: {run:?}"
        );
        assert!(secret.is_empty() || !run.err.contains(secret), "{run:?}");
    }
    assert_eq!(check(&groups, SECRET).code, 0);
    assert_eq!(
        check(
            &[
                groups[0],
                groups[1],
                "--console-proxies",
                "10.0.0.7,fd00::/64"
            ],
            ""
        )
        .code,
        0
    );
    let mut show = program(&["config", "show", "--console-groups", GROUPS]);
    let shown = Run::of(
        show.env("PGONCE_CONSOLE_PROXY_SECRET", SECRET)
            .output()
            .unwrap(),
    );
    assert!(
        shown.out.contains("(secret)") && !shown.out.contains(SECRET),
        "{shown:?}"
    );
}
