//! What is made of the file's routes: services, each with its policy around it.

use std::sync::Arc;

use pgonce::Once;
use pgonce::driver::Driver;
use tower::Layer as _;
use tower::util::BoxCloneSyncService;

use super::config::values::Principal;
use super::config::{self, Config, Route};
use super::headers::Trusted;
use super::policy::policy;
use super::proxy::{Proxy, ProxySettings};
use super::reauthorise::{self, Authority};
use super::router::{Entry, ProtectedRoute};
use super::upstream::Upstream;
use crate::{Budget, IdempotencyLayer, Reauthorise};

pub(crate) fn proxy(
    config: &Config,
    route: &Route,
    upstream: Arc<Upstream>,
    table: &config::Upstream,
    trusted: &Trusted,
) -> Proxy {
    Proxy::new(ProxySettings {
        upstream,
        host: table.host,
        key_form: table.key_form,
        close_delimited: table.close_delimited,
        trust_forwarded: config.tables.listen.trust_forwarded,
        trusted: trusted.clone(),
        body_timeout: config.tables.listen.body_timeout.0,
        tunnel_timeout: config.tables.listen.tunnel_timeout.0,
        max_response: route
            .once
            .as_ref()
            .map_or(0, |once| once.max_response.get_ref().0),
    })
}

/// The headers whose values any of the file's routes trusts.
pub(crate) fn trusted(config: &Config) -> Trusted {
    let named = |principal: &Principal| match principal {
        Principal::Header(name) => Some(name.clone()),
        Principal::None => None,
    };
    let protected = config
        .tables
        .routes
        .iter()
        .filter_map(|route| route.once.as_ref());
    Trusted::new(protected.flat_map(|once| {
        let headers = [&once.key_header, &once.version_header];
        let headers = headers.map(|name| name.as_ref().map(|name| name.0.clone()));
        let callers = [
            named(once.principal.get_ref()),
            named(once.tenant.get_ref()),
        ];
        headers.into_iter().chain(callers).flatten()
    }))
}

/// What is made of the routes.
pub(crate) struct RouteBuilder<D: Driver> {
    pub(crate) budget: Budget,
    pub(crate) entries: Vec<Entry>,
    pub(crate) layers: Vec<IdempotencyLayer<D>>,
}

impl<D: Driver> RouteBuilder<D> {
    /// One entry for a route that passes, one for each method of a route that happens once.
    pub(crate) fn add(
        &mut self,
        config: &Config,
        once: &Once<D>,
        route: &Route,
        proxy: &Proxy,
    ) -> Result<(), String> {
        let pattern = route.path.get_ref();
        let methods = route.methods.iter().map(|verb| verb.get_ref().0.clone());
        let Some(recorded) = &route.once else {
            self.entries.push(Entry {
                pattern: pattern.clone(),
                methods: methods.collect(),
                once: None,
                service: BoxCloneSyncService::new(proxy.clone()),
            });
            return Ok(());
        };
        let name = recorded.scope.get_ref();
        let scope = config
            .tables
            .scopes
            .iter()
            .find(|(scope, _)| scope.get_ref() == name);
        let (_, scope) = scope.ok_or_else(|| "the scope is not defined".to_owned())?;
        for method in methods {
            let mut policy = policy(&config.tables, pattern, &method, recorded, scope);
            if let Some(address) = &recorded.reauthorise {
                let limit = config.database().timeout();
                let authority = Arc::new(Authority::new(
                    Upstream::at(address.get_ref(), limit)?,
                    address.get_ref().0.clone(),
                    config.tables.listen.trust_forwarded,
                    &trusted(config),
                ));
                policy = policy.reauthorise(Reauthorise::new(move |head| {
                    let asked = reauthorise::ask(authority.clone(), head);
                    async move { asked.await.map_err(|refused| *refused) }
                }));
            }
            let layer = IdempotencyLayer::leased(once.clone(), policy);
            let layer = layer
                .map_err(|error| error.to_string())?
                .budget(self.budget.clone());
            self.entries.push(Entry {
                pattern: pattern.clone(),
                methods: vec![method],
                once: Some(ProtectedRoute {
                    scope: name.clone(),
                    key_header: layer.policy().header.clone(),
                }),
                service: BoxCloneSyncService::new(layer.layer(proxy.clone())),
            });
            self.layers.push(layer);
        }
        Ok(())
    }
}
