//! The gateway from its configuration to its end.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pgonce::Once;
use pgonce::driver::Driver;
use pgonce::migrate::Migrator;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admin::Admin;
use super::build::{RouteBuilder, proxy, trusted};
use super::config::{Config, Contracts, Database, Encryption, Log};
use super::dispatch::{Dispatcher, OwnHeaders};
use super::headers::IDEMPOTENCY_KEY;
use super::router::Router;
use super::scopes::{self, Difference};
use super::server::{Certificate, Limits, Server};
use super::upstream::Upstream;
use crate::{Budget, IdempotencyLayer};

/// How many connections the listener for health checks has at most.
const ADMIN_CONNECTIONS: usize = 64;

/// A gateway that is ready to listen. Made from a [`Config`].
pub struct Gateway<D: Driver> {
    config: Config,
    once: Once<D>,
    dispatcher: Dispatcher,
    layers: Vec<IdempotencyLayer<D>>,
    budget: Budget,
}

/// What is wrong with a gateway that could not be made: the particulars of one upstream or route.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {why}")]
pub struct BuildError {
    place: String,
    why: String,
}

impl<D: Driver> Gateway<D> {
    /// Makes it. Nothing is connected yet.
    pub fn new(config: Config, once: Once<D>) -> Result<Self, BuildError> {
        let budget = Budget::bytes(config.tables.listen.memory.get_ref().0);
        Self::with_budget(config, once, budget)
    }

    fn with_budget(config: Config, once: Once<D>, budget: Budget) -> Result<Self, BuildError> {
        let mut upstreams = BTreeMap::new();
        for (name, table) in &config.tables.upstreams {
            let ca_file = table
                .ca_file
                .as_ref()
                .map(|file| config.place_of(file.get_ref()));
            let upstream = Upstream::new(table, ca_file.as_deref()).map_err(|why| BuildError {
                place: format!("upstream {name:?}"),
                why,
            })?;
            upstreams.insert(name.as_str(), (Arc::new(upstream), table));
        }
        let mut made = RouteBuilder {
            budget: budget.clone(),
            entries: Vec::new(),
            layers: Vec::new(),
        };
        let matching = config.tables.listen.matching;
        let trusted = trusted(&config);
        for route in &config.tables.routes {
            let build_error = |why| BuildError {
                place: format!("route {}", route.path.get_ref()),
                why,
            };
            let named = upstreams.get(route.upstream.get_ref().as_str());
            let (upstream, table) =
                named.ok_or_else(|| build_error("the upstream is not defined".to_owned()))?;
            let proxy = proxy(&config, route, upstream.clone(), table, &trusted);
            made.add(&config, &once, route, &proxy)
                .map_err(build_error)?;
        }
        let key_headers = made
            .layers
            .iter()
            .map(|layer| layer.policy().header.clone());
        let dispatcher = Dispatcher {
            log: config.log().requests,
            keyed_on_pass: config.tables.listen.keyed_on_pass,
            key_headers: key_headers.chain([IDEMPOTENCY_KEY]).collect(),
            own: OwnHeaders::new(&config.tables.responses),
            router: Router::new(made.entries, matching),
        };
        Ok(Self {
            config,
            once,
            dispatcher,
            layers: made.layers,
            budget,
        })
    }

    /// Brings the file's contracts and the database's together, as the file says; answers what
    /// still differs. Nothing should be served while something does.
    pub async fn agree(&self) -> pgonce::Result<Vec<Difference>> {
        self.agree_as(self.config.database().contracts()).await
    }

    /// As [`Gateway::agree`], but only looks.
    pub async fn differences(&self) -> pgonce::Result<Vec<Difference>> {
        self.agree_as(Contracts::Check).await
    }

    async fn agree_as(&self, contracts: Contracts) -> pgonce::Result<Vec<Difference>> {
        self.migrator().check().await?;
        let named = self.config.tables.scopes.iter().map(|(name, scope)| {
            let routes = self.config.tables.routes.iter();
            let once = routes.filter_map(|route| route.once.as_ref());
            let once = once.filter(|once| once.scope.get_ref() == name.get_ref());
            let largest = once.map(|once| once.max_response.get_ref().0).max();
            (name.get_ref().as_str(), scope, largest.unwrap_or_default())
        });
        scopes::agree(
            self.once.driver(),
            self.config.database().schema(),
            named,
            contracts,
        )
        .await
    }

    /// Opens the listeners.
    pub async fn bind(self) -> io::Result<Bound<D>> {
        let listen = &self.config.tables.listen;
        let open = async |address: SocketAddr| {
            TcpListener::bind(address).await.map_err(|error| {
                io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
            })
        };
        let certificate = self.config.certificate().map_err(io::Error::other)?;
        let clients = open(*listen.address.get_ref()).await?;
        let admin = open(*listen.admin.get_ref()).await?;
        let (address, admin_address) = (clients.local_addr()?, admin.local_addr()?);
        Ok(Bound {
            current: Arc::new(Current {
                dispatcher: RwLock::new(Arc::new(self.dispatcher)),
                layers: Mutex::new(self.layers),
                once: self.once,
                budget: self.budget,
                certificate: Arc::new(RwLock::new(certificate)),
                memory: listen.memory.get_ref().0,
                encryption: self.config.tables.encryption.clone(),
                database: self.config.tables.database.clone(),
                log: self.config.tables.log.clone(),
            }),
            config: self.config,
            clients,
            admin,
            address,
            admin_address,
        })
    }

    fn migrator(&self) -> Migrator<D> {
        Migrator::new(self.once.driver().clone()).schema(self.config.database().schema())
    }
}

/// A gateway that listens; [`Bound::run`] serves.
pub struct Bound<D: Driver> {
    current: Arc<Current<D>>,
    config: Config,
    clients: TcpListener,
    admin: TcpListener,
    address: SocketAddr,
    admin_address: SocketAddr,
}

/// The routes that a running gateway serves, and all the layers that may have work.
pub(crate) struct Current<D: Driver> {
    dispatcher: RwLock<Arc<Dispatcher>>,
    layers: Mutex<Vec<IdempotencyLayer<D>>>,
    once: Once<D>,
    budget: Budget,
    certificate: Certificate,
    /// What the budget and the keys were made of: `memory` and `[encryption]` of the file.
    memory: usize,
    encryption: Option<Encryption>,
    /// What `once` and the log were made of: a reload keeps it, whatever the file says then.
    database: Database,
    log: Log,
}

impl<D: Driver> Current<D> {
    /// The setting, if one differs, that cannot be changed while the gateway runs, and must not be taken to have changed.
    fn needs_restart(&self, config: &Config) -> Option<&'static str> {
        if config.tables.listen.memory.get_ref().0 != self.memory {
            return Some("listen.memory");
        }
        // A listener does not begin or cease to encrypt: its clients would not follow.
        let certificate = self.certificate.read();
        let certificate = certificate.unwrap_or_else(PoisonError::into_inner);
        if config.tables.listen.tls.is_some() != certificate.is_some() {
            return Some("whether there is a listen.tls");
        }
        (config.tables.encryption != self.encryption).then_some("encryption")
    }

    fn dispatcher(&self) -> Arc<Dispatcher> {
        let dispatcher = self.dispatcher.read();
        dispatcher.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn once(&self) -> &Once<D> {
        &self.once
    }

    pub(crate) fn layers(&self) -> Vec<IdempotencyLayer<D>> {
        let layers = self.layers.lock();
        layers.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Replaces the routes of a running gateway, from [`Bound::reload`].
pub struct Reload<D: Driver>(Arc<Current<D>>);

/// Why a gateway keeps its routes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// A route or an upstream cannot be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The contracts could not be compared with the database's.
    #[error("the contracts cannot be compared: {0}")]
    Database(#[from] pgonce::Error),
    /// The database has other contracts.
    #[error("the file and the database disagree: {0}")]
    Contracts(String),
    /// A setting differs that a reload cannot change.
    #[error("{0} changes only with a restart; take the change back, or restart the gateway")]
    Restart(&'static str),
}

impl<D: Driver> Reload<D> {
    /// Serves new requests by this configuration; those in progress end by the one before. Its addresses, limits of connections,
    /// `max_header_bytes`, `header_timeout`, `write_timeout`, `drain_timeout`, database and log stay as they were at the start. One
    /// with other memory or encryption, or where `tls` was added or removed, is refused.
    pub async fn apply(&self, mut config: Config) -> Result<(), ReloadError> {
        let current = &self.0;
        if let Some(setting) = current.needs_restart(&config) {
            return Err(ReloadError::Restart(setting));
        }
        config.tables.database = current.database.clone();
        config.tables.log = current.log.clone();
        let (once, budget) = (current.once.clone(), current.budget.clone());
        let certificate = config.certificate().map_err(|why| BuildError {
            place: "listen.tls".to_owned(),
            why,
        })?;
        let gateway = Gateway::with_budget(config, once, budget)?;
        let differences = gateway.agree().await?;
        if !differences.is_empty() {
            let list: Vec<String> = differences.iter().map(Difference::to_string).collect();
            return Err(ReloadError::Contracts(list.join("; ")));
        }
        let mut layers = current
            .layers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        layers.extend(gateway.layers);
        let mut dispatcher = (current.dispatcher.write()).unwrap_or_else(PoisonError::into_inner);
        *dispatcher = Arc::new(gateway.dispatcher);
        let mut shown = (current.certificate.write()).unwrap_or_else(PoisonError::into_inner);
        *shown = certificate;
        Ok(())
    }
}

/// How a gateway ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// How much was still under way when the time to drain was over.
    pub unfinished: usize,
}

impl<D: Driver> Bound<D> {
    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How clients connect: `http`, or `https` with a certificate.
    pub fn scheme(&self) -> &'static str {
        match self.config.tables.listen.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// Where `/healthz` and `/readyz` are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Replaces the routes while the gateway runs.
    pub fn reload(&self) -> Reload<D> {
        Reload(self.current.clone())
    }

    /// Serves until `stop` is done, then drains: nothing is accepted any more, `/readyz` answers
    /// 503, and what is under way may finish within the file's `drain_timeout`.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Drained {
        let (config, current) = (self.config, self.current);
        let (stopping, connections) = (CancellationToken::new(), TaskTracker::new());
        let listen = &config.tables.listen;
        let limits = Limits {
            connections: *listen.max_connections.get_ref(),
            connections_per_peer: listen.max_connections_per_peer(),
            write_timeout: listen.write_timeout.0,
            header_bytes: listen.max_header_bytes.get_ref().0,
            header_timeout: listen.header_timeout.0,
        };
        let server = Server {
            listener: self.clients,
            limits,
            certificate: current.certificate.clone(),
            stop: stopping.clone(),
            connections: connections.clone(),
        };
        let routes = current.clone();
        let serving = tokio::spawn(server.accept(move |request| {
            let dispatcher = routes.dispatcher();
            async move { dispatcher.answer(request).await }
        }));
        let admin = Admin {
            migrator: Migrator::new(current.once.driver().clone())
                .schema(config.database().schema()),
            database_timeout: config.database().timeout(),
            current: current.clone(),
            connections: connections.clone(),
            stop: stopping.clone(),
        };
        let admin = tokio::spawn(admin_server(self.admin, limits, admin));
        stop.await;
        tracing::info!(connections = connections.len(), "draining");
        stopping.cancel();
        let _ = serving.await;
        connections.close();
        let drained = async {
            connections.wait().await;
            // Work goes on when its client has gone.
            for layer in current.layers() {
                layer.drained().await;
            }
        };
        let _ = tokio::time::timeout(listen.drain_timeout.0, drained).await;
        admin.abort();
        let work: usize = current
            .layers()
            .iter()
            .map(IdempotencyLayer::under_way)
            .sum();
        Drained {
            unfinished: connections.len().max(work),
        }
    }
}

/// Health checks are answered until the process ends, so this server's stop token is never cancelled.
async fn admin_server<D: Driver>(listener: TcpListener, limits: Limits, admin: Admin<D>) {
    let limits = Limits {
        connections: ADMIN_CONNECTIONS,
        connections_per_peer: ADMIN_CONNECTIONS,
        ..limits
    };
    let server = Server {
        listener,
        limits,
        certificate: Certificate::default(),
        stop: CancellationToken::new(),
        connections: TaskTracker::new(),
    };
    let admin = Arc::new(admin);
    server
        .accept(move |request| {
            let admin = admin.clone();
            async move { admin.answer(request).await }
        })
        .await;
}
