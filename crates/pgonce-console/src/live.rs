//! Reports to pages when something changed: one look at the database for all who watch, and none while nobody does.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::sync::watch;

use crate::api;
use crate::server::{App, Shared};

/// Pause between two looks.
const EVERY: Duration = Duration::from_secs(2);

/// Maximum number of pages that are served; others ask by themselves.
const MAX_STREAMS: usize = 100;

/// Row changes in our tables, as PostgreSQL counts them: it says that something changed, and costs the same however large they are.
const CHANGES: &str = "select coalesce(sum(t.n_tup_ins + t.n_tup_upd + t.n_tup_del), 0)::text as changes from pg_stat_user_tables t \
     where t.schemaname = (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = 'pgonce.intent'::regclass)";

#[derive(Debug, Default)]
pub(crate) struct Live {
    changes: watch::Sender<String>,
    looking: AtomicBool,
}

/// Looks while anybody watches.
async fn look(app: Arc<App>) {
    let live = &app.live;
    loop {
        // A database that is away is no change; the page itself says so.
        if let Ok(Some(row)) = app.db.row(CHANGES, &[]).await {
            let seen = crate::db::text(&row, "changes");
            live.changes.send_if_modified(|known| {
                let changed = !known.is_empty() && *known != seen;
                *known = seen;
                changed
            });
        }
        tokio::time::sleep(EVERY).await;
        if live.changes.receiver_count() == 0 {
            live.looking.store(false, Ordering::SeqCst);
            // Somebody may have come between the count and the flag.
            if live.changes.receiver_count() == 0 || live.looking.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}

pub(crate) async fn events(State(app): State<Shared>) -> Response {
    if app.live.changes.receiver_count() >= MAX_STREAMS {
        let why = "too many pages are live; ask again and again";
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            api::problem(503, "too_many_watchers", why),
        )
            .into_response();
    }
    let watched = app.live.changes.subscribe();
    if !app.live.looking.swap(true, Ordering::SeqCst) {
        tokio::spawn(look(app.clone()));
    }
    let changes = stream::unfold(watched, async |mut watched| {
        watched.changed().await.ok()?;
        let event = Event::default().event("changed").data("");
        Some((Ok::<_, Infallible>(event), watched))
    });
    Sse::new(changes)
        .keep_alive(KeepAlive::default())
        .into_response()
}
