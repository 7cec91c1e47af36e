//! Requests, from the outside in: headers, who asks, which page or act.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, OriginalUri, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};

use crate::access::{COOKIE, Guard, Refused, Who};
use crate::acts::ACTS;
use crate::db::Db;
use crate::html::{Html, el, query};
use crate::live::{self, Live};
use crate::operations::Operations;
use crate::view::{self, Page};
use crate::{Console, api, openapi, pages, perform};

/// What every request needs.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) db: Db,
    pub(crate) base: String,
    pub(crate) instance: String,
    pub(crate) redact: Vec<String>,
    pub(crate) live: Arc<Live>,
    pub(crate) operations: Arc<Operations>,
    guard: Arc<Guard>,
}

pub(crate) type Shared = Arc<App>;

/// What a form or an address carries; the last of two values of one name counts.
pub(crate) type Fields = HashMap<String, String>;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// A form has a reason and perhaps an answer.
const MAX_BODY: usize = 256 * 1024;

pub(crate) fn router(console: Console) -> Router {
    let app = Arc::new(App {
        db: console.db,
        base: console.base,
        instance: console.instance,
        redact: console.redact,
        live: Arc::default(),
        operations: console.state.operations.clone(),
        guard: console.state.guard(console.access),
    });
    let mut router = Router::new()
        .route("/api/v1/{name}", get(api::get))
        .route("/api/v1/openapi.json", get(openapi::get))
        .route("/events", get(live::events))
        .route("/logout", post(logout));
    for page in pages::PAGES {
        router = router.route(
            page.path,
            get(move |app, who, uri| pages::show(page, app, who, uri)),
        );
    }
    for act in ACTS {
        router = router
            .route(
                &format!("/act/{}", act.name),
                post(move |app, who, body| perform::by_form(act, app, who, body)),
            )
            .route(
                &format!("/api/v1/act/{}", act.name),
                post(move |app, who, headers, body| perform::by_api(act, app, who, headers, body)),
            );
    }
    router
        .layer(middleware::from_fn_with_state(app.clone(), authenticate))
        .route("/login", get(login_page).post(login))
        .route(
            "/assets/app.css",
            get(async || asset("text/css; charset=utf-8", include_str!("../assets/app.css"))),
        )
        .route(
            "/assets/app.js",
            get(async || {
                asset(
                    "text/javascript; charset=utf-8",
                    include_str!("../assets/app.js"),
                )
            }),
        )
        .route(
            "/assets/icon.svg",
            get(async || asset("image/svg+xml", include_str!("../assets/icon.svg"))),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(harden))
        .with_state(app)
}

async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        // Not "no-referrer": a browser would then send its forms with the origin "null".
        ("referrer-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn authenticate(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let is_api = request.uri().path().contains("/api/v1/");
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map(|ConnectInfo(address)| address.ip());
    match app.guard.who(request.headers(), peer) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            next.run(request).await
        }
        Err(Refused::Foreign) => {
            let why = "another origin sent this, or a name that is not this machine's leads here";
            (StatusCode::FORBIDDEN, why).into_response()
        }
        Err(refused @ (Refused::NotByProxy | Refused::NoRole)) => {
            let (status, code, why) = match refused {
                Refused::NoRole => (
                    StatusCode::FORBIDDEN,
                    "role_needed",
                    "you are signed in, and no group of yours has a role here",
                ),
                _ => (
                    StatusCode::UNAUTHORIZED,
                    "sign_in_needed",
                    "sign in by the proxy in front of this console",
                ),
            };
            match is_api {
                true => (status, api::problem(status.as_u16(), code, why)).into_response(),
                false => (status, why).into_response(),
            }
        }
        Err(Refused::Login) if is_api => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (
                StatusCode::UNAUTHORIZED,
                challenge,
                api::problem(401, "sign_in_needed", "give a token"),
            )
                .into_response()
        }
        Err(Refused::Login) => {
            let to = match *request.method() {
                Method::GET => request
                    .extensions()
                    .get::<OriginalUri>()
                    .map(|uri| uri.to_string()),
                _ => None,
            };
            let next = query(&[("next", &to.unwrap_or_default())]);
            Redirect::to(&format!("{}/login{next}", app.base)).into_response()
        }
    }
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "public, max-age=300"),
    ];
    (headers, text).into_response()
}

pub(crate) fn fields(encoded: &[u8]) -> Fields {
    url::form_urlencoded::parse(encoded).into_owned().collect()
}

async fn login_page(State(app): State<Shared>, OriginalUri(uri): OriginalUri) -> Response {
    let fields = fields(uri.query().unwrap_or_default().as_bytes());
    sign_in(&app, &fields, "").into_response()
}

fn sign_in(app: &App, fields: &Fields, wrong: &str) -> Response {
    let next = fields.get("next").map_or("", String::as_str);
    let form = el("h1", &[], "Sign in")
        .and(el("p", &[("class", "error"), ("role", "alert")], wrong))
        .and(el(
            "form",
            &[
                ("method", "post"),
                ("action", &format!("{}/login", app.base)),
                ("class", "card narrow"),
            ],
            el(
                "input",
                &[("type", "hidden"), ("name", "next"), ("value", next)],
                "",
            )
            .and(el("label", &[("for", "token")], "Token"))
            .and(el(
                "input",
                &[
                    ("type", "password"),
                    ("name", "token"),
                    ("id", "token"),
                    ("autofocus", ""),
                    ("required", ""),
                    ("autocomplete", "current-password"),
                ],
                "",
            ))
            .and(el("button", &[("class", "primary")], "Sign in")),
        ));
    let status = if wrong.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::FORBIDDEN
    };
    let page = Page {
        title: "Sign in".to_owned(),
        body: form,
        ..Page::default()
    };
    (status, view::shell(app, None, page)).into_response()
}

async fn login(State(app): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let fields = fields(&body);
    let token = fields.get("token").map_or("", String::as_str);
    let Some(session) = app.guard.login(token) else {
        tracing::warn!("console: a sign-in was refused");
        return sign_in(&app, &fields, "This token is not known.");
    };
    // Only a path of ours: anything else would lead people away.
    let next = fields
        .get("next")
        .filter(|next| next.starts_with('/') && !next.starts_with("//"))
        // Browsers drop tabs and read a backslash as a slash.
        .filter(|next| next.bytes().all(|c| c.is_ascii_graphic() && c != b'\\'));
    let next = next.cloned().unwrap_or_else(|| format!("{}/", app.base));
    let is_https = headers
        .get("x-forwarded-proto")
        .is_some_and(|proto| proto == "https");
    let secure = if is_https { "; Secure" } else { "" };
    let cookie = format!(
        "{COOKIE}={session}; Path={}/; HttpOnly; SameSite=Strict; Max-Age=43200{secure}",
        app.base
    );
    ([(header::SET_COOKIE, cookie)], Redirect::to(&next)).into_response()
}

async fn logout(
    State(app): State<Shared>,
    axum::Extension(who): axum::Extension<Who>,
    body: Bytes,
) -> Response {
    if perform::is_ours(&who, &fields(&body)) {
        app.guard.logout(&who);
    }
    Redirect::to(&format!("{}/login", app.base)).into_response()
}

/// A page that says why nothing was done, or that it may have been done.
pub(crate) fn error_page(
    app: &App,
    who: &Who,
    refused: &perform::Refused,
    back: Option<&str>,
) -> Response {
    let heading = match refused.is_unknown {
        true => "It may have been done",
        false => "That was not done",
    };
    let what = refused.what.as_str();
    let body = el("h1", &[], heading)
        .and(el("p", &[("class", "error"), ("role", "alert")], what))
        .and(match refused.detail.as_str() {
            "" => Html::default(),
            detail => el("p", &[("class", "muted")], detail),
        })
        .and(match back {
            Some(back) => el("p", &[], el("a", &[("href", back)], "Look at it")),
            None => Html::default(),
        });
    let page = Page {
        title: heading.to_owned(),
        body,
        ..Page::default()
    };
    (refused.status, view::shell(app, Some(who), page)).into_response()
}
