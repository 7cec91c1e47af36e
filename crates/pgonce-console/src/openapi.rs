//! The description of the API, made from the same lists as its routes.

use axum::Json;
use axum::extract::State;
use serde_json::{Map, Value, json};

use crate::acts::{ACTS, Act};
use crate::pages::{Entry, PAGES};
use crate::server::Shared;

const CUT: &str = "Counts stop at a bound, which several may share. Where a column that ends in _cut is true, there are at least as many as the counts that it \
    is about say: open_cut is about received, processing and retrying; due_cut about running, retrying and scheduled; parked_cut about parked and dead; stuck_cut about \
    manual and stuck; any other about the count that it is named after.";

fn page(page: &Entry) -> Value {
    let fields = page.fields.iter().map(|name| {
        json!({"name": name, "in": "query", "required": false, "schema": {"type": "string"}})
    });
    json!({"get": {
        "operationId": page.name,
        "summary": format!("What the page {} shows, as tables", page.label),
        "x-role": "viewer",
        "parameters": fields.collect::<Vec<_>>(),
        "responses": {
            "200": {"description": "The tables of the page", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Page"}}}},
            "401": {"$ref": "#/components/responses/Problem"},
            "503": {"$ref": "#/components/responses/Problem"},
        },
    }})
}

fn act(act: &Act) -> Value {
    let mut properties = Map::new();
    for name in act.fields {
        let kind = match *name {
            "force" => json!({"type": "boolean"}),
            "before" => {
                json!({"type": ["object", "string"], "description": "Columns of the record as they were seen, such as status and fence: \
                where it has others now, nothing is done"})
            }
            "id" | "seq" | "number" => json!({"type": ["integer", "string"]}),
            _ => json!({"type": "string"}),
        };
        properties.insert((*name).to_owned(), kind);
    }
    let mut required = act.needs.to_vec();
    if !act.confirm.is_empty() {
        properties.insert("confirm".to_owned(), json!({"const": act.confirm}));
        required.push("confirm");
    }
    let refusals = ["400", "401", "403", "404", "409", "415", "422", "503"];
    let mut responses: Map<String, Value> = refusals
        .iter()
        .map(|status| {
            (
                (*status).to_owned(),
                json!({"$ref": "#/components/responses/Problem"}),
            )
        })
        .collect();
    responses.insert("200".to_owned(), json!({"description": "It was done", "content": {"application/json": {"schema": {"type": "object",
        "properties": {"act": {"const": act.name}, "result": {}}, "required": ["act", "result"]}}}}));
    json!({"post": {
        "operationId": format!("act-{}", act.name),
        "summary": format!("Do {}; the caller's name is recorded", act.name),
        "x-role": act.role.as_str(),
        "requestBody": {"required": true, "content": {"application/json": {"schema": {"type": "object", "properties": properties, "required": required, "additionalProperties": false}}}},
        "responses": responses,
    }})
}

pub(crate) async fn get(State(app): State<Shared>) -> Json<Value> {
    let pages = PAGES
        .iter()
        .map(|entry| (format!("/{}", entry.name), page(entry)));
    let acts = ACTS
        .iter()
        .map(|done| (format!("/act/{}", done.name), act(done)));
    Json(json!({
        "openapi": "3.1.0",
        "info": {"title": "pgonce console", "version": env!("CARGO_PKG_VERSION"), "license": {"name": "MIT OR Apache-2.0"}},
        "servers": [{"url": format!("{}/api/v1", app.base)}],
        "security": [{"token": []}],
        "paths": pages.chain(acts).collect::<Map<_, _>>(),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": {"description": "Why nothing was done or shown; of an act with the code 08007: why it is not known whether it was done", "content": {"application/json": {"schema": {"type": "object",
                "properties": {"status": {"type": "integer"}, "code": {"type": "string", "description": "What programs go by; 08007: it may have been done"}, "title": {"type": "string"}}, "required": ["status", "code", "title"]}}}}},
            "schemas": {"Page": {"type": "object", "required": ["sections"], "properties": {"sections": {"type": "array", "items": {"type": "object",
                "required": ["title", "rows", "next", "more"], "properties": {"title": {"type": "string"},
                "rows": {"type": "array", "items": {"type": "object", "description": CUT}}, "next": {"type": ["string", "null"], "description": "The address of the next page of this table"}, "more": {"type": "boolean", "description": "Whether there are more rows than these"}}}}}}},
        },
    }))
}
