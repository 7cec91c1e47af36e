//! The service in the storm: both modes, each with an effect that nothing but pgonce keeps single.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use pgonce::driver::sqlx::Sqlx;
use pgonce::retry::Policy as Retries;
use pgonce::scope::Stale;
use pgonce::{ClaimKind, Once};
use pgonce_http::gateway::{Config, Drained, Gateway};
use pgonce_http::{
    AttemptInfo, Caller, Disposition, HandlerError, IdempotencyLayer, Key, Policy, Tx,
};
use sqlx::PgPool;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::support::{SCOPE, Site, TestDriver, World, made};

/// The table, and how the outside world of leased work writes to it: a call of a holder that lost its lease may arrive late, so it
/// looks which attempt is the latest it knows of, as `AttemptInfo` is there for.
pub(crate) const TABLE: &str = "create table storm_effects (key text not null, attempt bigint not null, \
    amount bigint not null, payload jsonb not null, at timestamptz not null default clock_timestamp());
create table storm_latest (key text primary key, number bigint not null);
create function storm_call(p_key text, p_number bigint, p_look boolean, p_attempt bigint, p_amount bigint, p_payload jsonb)
returns void language plpgsql as $$
begin
    insert into storm_latest as l values (p_key, p_number)
        on conflict (key) do update set number = excluded.number where l.number <= excluded.number;
    if found and not (p_look and exists (select from storm_effects where key = p_key)) then
        insert into storm_effects (key, attempt, amount, payload) values (p_key, p_attempt, p_amount, p_payload);
    end if;
end $$";

/// The header with the number of the client's attempt. No part of the request's meaning.
pub(crate) const ATTEMPT: &str = "x-attempt";

/// How the work and its answer are held together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Atomic,
    Leased,
    /// The same, where work of which nobody knows is not done again.
    Refusing,
    /// The gateway, in front of a service that knows nothing of pgonce.
    Gateway,
    /// As if there were no layer.
    Off,
}

/// A claim whose answer is lost belongs to nobody: it is over soon, and others may have it.
pub(crate) fn policy() -> Policy {
    Policy::new(SCOPE, Caller::None)
        .retention(Duration::from_secs(3600))
        .database_timeout(Duration::from_secs(4))
        .lease(Duration::from_secs(2))
        .stale(Stale::Takeover)
}

/// A service that comes up when it is first asked for.
pub(crate) struct Shore<D: TestDriver> {
    mode: Mode,
    /// Past all that cuts: the outside world of leased work.
    outside: PgPool,
    site: OnceCell<(Site, Option<IdempotencyLayer<D>>)>,
    gateway: Mutex<Option<Running>>,
}

/// A gateway that serves until the sender is dropped.
type Running = (oneshot::Sender<()>, JoinHandle<Drained>);

impl<D: TestDriver> Shore<D> {
    pub(crate) fn new(world: &World<Sqlx>, mode: Mode) -> Self {
        Self {
            mode,
            outside: world.pool.clone(),
            site: OnceCell::new(),
            gateway: Mutex::default(),
        }
    }

    /// Where it listens; its line to the database is `url`.
    pub(crate) async fn address(&self, url: &str) -> SocketAddr {
        let up = self.site.get_or_init(|| async {
            let retries = Retries::default().base(Duration::from_millis(5)).tries(4);
            let once = Once::builder(D::connect(url, 8)).retry(retries).build();
            if self.mode == Mode::Gateway {
                return (self.gateway(once.unwrap()).await, None);
            }
            let layer = self.layer(once.unwrap());
            let router = match self.mode {
                Mode::Atomic => Router::new().route("/effects", post(atomic::<D>)),
                Mode::Leased | Mode::Off => {
                    let router = Router::new().route("/effects", post(leased));
                    router.with_state(self.outside.clone())
                }
                Mode::Refusing => {
                    let router = Router::new().route("/effects", post(vanishing));
                    router.with_state(self.outside.clone())
                }
                Mode::Gateway => unreachable!("it has a service of its own"),
            };
            let site = Site::open(router.route_layer(layer.clone())).await;
            (site, Some(layer))
        });
        up.await.0.address.parse().unwrap()
    }

    /// The service first, then the gateway in front of it, whose address the site has.
    async fn gateway(&self, once: Once<D>) -> Site {
        let router = Router::new().route("/effects", post(behind_the_gateway));
        let mut site = Site::open(router.with_state(self.outside.clone())).await;
        let config = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[database]\ntimeout = \"4s\"\n\
             [upstreams.u]\nurl = \"http://{}\"\n\
             [scopes.\"{SCOPE}\"]\nretention = \"1h\"\nlease = \"2s\"\nstale = \"takeover\"\n\
             [[routes]]\npath = \"/effects\"\nmethods = [\"POST\"]\nupstream = \"u\"\n\
             [routes.once]\nscope = \"{SCOPE}\"\nprincipal = \"none\"\n",
            site.address
        );
        let config = Config::parse("storm.toml", &config).unwrap();
        let bound = Gateway::new(config, once).unwrap().bind().await.unwrap();
        site.address = bound.address().to_string();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(bound.run(async move {
            let _ = stopped.await;
        }));
        *self.gateway.lock().unwrap() = Some((stop, running));
        site
    }

    fn layer(&self, once: Once<D>) -> IdempotencyLayer<D> {
        let layer = match self.mode {
            Mode::Atomic => IdempotencyLayer::atomic(once, policy()),
            Mode::Leased => IdempotencyLayer::leased(once, policy()),
            Mode::Refusing => IdempotencyLayer::leased(once, policy().stale(Stale::Refuse)),
            Mode::Off => IdempotencyLayer::leased(once, policy().enabled(false)),
            Mode::Gateway => unreachable!("it makes its own"),
        };
        layer.unwrap()
    }

    /// Waits until nothing is under way any more, but for what can no longer reach the database: that tries to record
    /// what it did for an hour.
    pub(crate) async fn drained(&self) {
        let gateway = self.gateway.lock().unwrap().take();
        let ended = async {
            if let Some((_, Some(layer))) = self.site.get() {
                layer.drained().await;
            }
            if let Some((stop, running)) = gateway {
                drop(stop);
                running.await.unwrap();
            }
        };
        let _ = timeout(Duration::from_secs(5), ended).await;
    }
}

/// An effect as it is written down; keys and numbers of the storm need no quoting.
fn insert(key: &str, headers: &HeaderMap, payload: &str) -> String {
    let attempt = headers[ATTEMPT].to_str().unwrap();
    let value: serde_json::Value = serde_json::from_str(payload).unwrap();
    format!(
        "insert into storm_effects (key, attempt, amount, payload) values ('{}', {attempt}, {}, '{value}')",
        key, value["amount"]
    )
}

async fn atomic<D: TestDriver>(
    mut tx: Tx<D>,
    key: Key,
    headers: HeaderMap,
    payload: String,
) -> Result<Response, HandlerError> {
    D::exec(tx.conn(), &insert(&key.0, &headers, &payload)).await?;
    Ok(made())
}

/// After a takeover it looks whether the first holder had done it already, as a service that may be asked
/// twice must.
async fn leased(
    State(outside): State<PgPool>,
    info: Option<AttemptInfo>,
    headers: HeaderMap,
    payload: String,
) -> Response {
    let number = info.map_or(1, |info| info.number);
    let look = info.is_some_and(|info| info.kind == ClaimKind::Takeover);
    call(&outside, number, look, &headers, &payload).await;
    made()
}

/// One call to the outside world by the attempt of this number, which first looks whether it was done already if it should.
async fn call(outside: &PgPool, number: u32, look: bool, headers: &HeaderMap, payload: &str) {
    let payload: serde_json::Value = serde_json::from_str(payload).unwrap();
    sqlx::query("select storm_call($1, $2, $3, $4, $5, $6)")
        .bind(headers["idempotency-key"].to_str().unwrap())
        .bind(i64::from(number))
        .bind(look)
        .bind(headers[ATTEMPT].to_str().unwrap().parse::<i64>().unwrap())
        .bind(payload["amount"].as_i64().unwrap())
        .bind(&payload)
        .execute(outside)
        .await
        .unwrap();
}

/// The same for a service that learns from the gateway how often it was asked.
async fn behind_the_gateway(
    State(outside): State<PgPool>,
    headers: HeaderMap,
    payload: String,
) -> Response {
    let number = headers["pgonce-attempt"].to_str().unwrap();
    let number = number.parse().unwrap();
    call(&outside, number, number > 1, &headers, &payload).await;
    made()
}

/// Whether the process that does this work is gone before it can report it.
pub(crate) fn vanishes(amount: u64) -> bool {
    amount.is_multiple_of(3)
}

/// Some work is done and not reported: half of it was.
async fn vanishing(State(outside): State<PgPool>, headers: HeaderMap, payload: String) -> Response {
    let value: serde_json::Value = serde_json::from_str(&payload).unwrap();
    let amount = value["amount"].as_u64().unwrap();
    if !vanishes(amount) {
        return leased(State(outside), None, headers, payload).await;
    }
    if amount.is_multiple_of(2) {
        drop(leased(State(outside), None, headers, payload).await);
    }
    let mut answer = StatusCode::GATEWAY_TIMEOUT.into_response();
    answer.extensions_mut().insert(Disposition::Unknown);
    answer
}
