//! The same pages as JSON, under `/api/v1`.

use axum::Json;
use axum::extract::{Extension, OriginalUri, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::access::Who;
use crate::pages::{self, PAGES};
use crate::server::{Shared, fields};

/// A problem as RFC 9457 has it. Programs go by the code.
pub(crate) fn problem(status: u16, code: &str, title: &str) -> Json<Value> {
    Json(json!({"status": status, "code": code, "title": title}))
}

pub(crate) async fn get(
    State(app): State<Shared>,
    Extension(who): Extension<Who>,
    Path(name): Path<String>,
    OriginalUri(uri): OriginalUri,
) -> Response {
    let Some(page) = PAGES.iter().find(|page| page.name == name) else {
        return (
            StatusCode::NOT_FOUND,
            problem(404, "unknown_page", "there is no such resource"),
        )
            .into_response();
    };
    let fields = fields(uri.query().unwrap_or_default().as_bytes());
    match pages::sections(page.name, &app, &who, &fields).await {
        Ok(sections) => {
            let sections: Vec<Value> = sections
                .into_iter()
                .map(|section| {
                    let more = section.is_cut || section.next.is_some();
                    let next = section
                        .next
                        .map(|(name, _, query)| format!("{}/api/v1/{name}{query}", app.base));
                    json!({"title": section.title, "rows": section.rows, "next": next, "more": more})
                })
                .collect();
            Json(json!({ "sections": sections })).into_response()
        }
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            problem(503, error.code(), &error.to_string()),
        )
            .into_response(),
    }
}
