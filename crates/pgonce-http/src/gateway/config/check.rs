//! What must hold between the fields of a file, beyond each being readable.

use std::ops::Range;

use http::Method;
use toml::Spanned;

use super::routes::{AfterExpiry, Busy, Once, Route, Scope};
use super::tables::Cache;
use super::values::Principal;
use super::{Config, Fault};
use crate::budget::PER_REQUEST;

/// hyper reads at least so much at once.
const LEAST_HEADER_BYTES: usize = 8 * 1024;

/// Headers that carry a credential, which may change while the principal stays the same.
const CREDENTIALS: [&str; 9] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-access-token",
    "x-amz-security-token",
    "x-api-key",
    "x-auth-token",
    "x-csrf-token",
    "x-session-id",
];

pub(super) fn faults(config: &Config, text: &str) -> Vec<Fault> {
    let mut checked = Checked {
        config,
        text,
        faults: Vec::new(),
    };
    checked.listen();
    checked.database();
    checked.upstreams();
    checked.scopes();
    checked.routes();
    checked.overlaps();
    checked.faults
}

struct Checked<'a> {
    config: &'a Config,
    text: &'a str,
    faults: Vec<Fault>,
}

impl Checked<'_> {
    fn refuse(&mut self, span: Range<usize>, what: impl Into<String>, hint: impl Into<String>) {
        self.faults.push(Fault::at(self.text, span, what, hint));
    }

    fn listen(&mut self) {
        let listen = &self.config.tables.listen;
        let (address, admin) = (listen.address.get_ref(), listen.admin.get_ref());
        if address == admin && address.port() != 0 {
            self.refuse(
                listen.admin.span(),
                format!("clients and health checks cannot both be served on {admin}"),
                "Give `admin` another port; it is 127.0.0.1:9090 where it is left out.",
            );
        }
        if *listen.max_connections.get_ref() == 0 {
            self.refuse(
                listen.max_connections.span(),
                "with no connections no request could be served",
                "Give 1 or more, such as 1024.",
            );
        }
        if let Some(peer) = &listen.max_connections_per_peer
            && *peer.get_ref() == 0
        {
            self.refuse(
                peer.span(),
                "with no connections per peer no request could be served",
                "Give 1 or more, or leave it out.",
            );
        }
        if let Some(tls) = &listen.tls
            && let Err(why) = self.config.certificate()
        {
            self.refuse(
                tls.span(),
                format!("the certificate cannot be used: {why}"),
                "Name two PEM files: the chain, the server's own certificate first, and its private key.",
            );
        }
        if listen.max_header_bytes.get_ref().0 < LEAST_HEADER_BYTES {
            self.refuse(
                listen.max_header_bytes.span(),
                "ordinary requests would not fit into so few bytes",
                "Give \"8 KiB\" or more.",
            );
        }
    }

    fn database(&mut self) {
        let database = &self.config.tables.database;
        if let Some(span) = database.second_place() {
            self.refuse(
                span,
                "the address of the database is given in two places",
                "Keep one of `url_env` and `url_file`.",
            );
        }
        if *database.connections.get_ref() == 0 {
            self.refuse(
                database.connections.span(),
                "without connections no claim could be made",
                "Give 1 or more, such as 16.",
            );
        }
        let cache = self.config.tables.cache.as_ref();
        if let Some(span) = cache.and_then(Cache::without_key) {
            self.refuse(
                span,
                "values in Redis must be sealed with a key",
                "Name the variable that it is in, as `key_env`; `openssl rand -hex 32` makes one.",
            );
        }
    }

    fn upstreams(&mut self) {
        for upstream in self.config.tables.upstreams.values() {
            if upstream.connect_timeout.get_ref().0.is_zero() {
                self.refuse(
                    upstream.connect_timeout.span(),
                    "no connection is made in no time",
                    "Give more than \"0s\", such as \"2s\".",
                );
            }
            if upstream.connect_timeout.get_ref() >= &upstream.response_timeout {
                self.refuse(
                    upstream.connect_timeout.span(),
                    "`connect_timeout` is not shorter than `response_timeout`",
                    "Make it shorter: only a connection that was never made is sure to have done nothing.",
                );
            }
            let Some(file) = &upstream.ca_file else {
                continue;
            };
            if upstream.url.get_ref().0.scheme_str() == Some("http") {
                self.refuse(
                    file.span(),
                    "an upstream without TLS has no certificate to check",
                    "Write https:// in `url`, or leave `ca_file` out.",
                );
            } else if let Err(why) =
                crate::gateway::tls::authorities(&self.config.place_of(file.get_ref()))
            {
                self.refuse(
                    file.span(),
                    format!("the certificates cannot be read: {why}"),
                    "Name a PEM file with the authority that signed the upstream's certificate.",
                );
            }
        }
    }

    fn scopes(&mut self) {
        for (name, scope) in &self.config.tables.scopes {
            if name.get_ref().is_empty() || name.get_ref().len() > pgonce::MAX_NAME_BYTES {
                self.refuse(
                    name.span(),
                    format!(
                        "the name of a scope has 1 to {} bytes",
                        pgonce::MAX_NAME_BYTES
                    ),
                    "Name a bounded kind of command, such as [scopes.\"orders.create\"].",
                );
            }
            self.scope(scope);
        }
        let encrypted = self.config.tables.encryption.as_ref();
        for name in encrypted
            .and_then(|e| e.scopes.as_ref())
            .into_iter()
            .flatten()
        {
            self.known_scope(name);
        }
    }

    fn known_scope(&mut self, named: &Spanned<String>) {
        let scopes = &self.config.tables.scopes;
        if !scopes.keys().any(|name| name.get_ref() == named.get_ref()) {
            self.refuse(
                named.span(),
                format!("there is no scope {:?}", named.get_ref()),
                known(
                    "[scopes.\"NAME\"]",
                    scopes.keys().map(|name| name.get_ref().as_str()),
                ),
            );
        }
    }

    fn scope(&mut self, scope: &Scope) {
        let retention = scope.retention.get_ref();
        if retention.0.is_zero() {
            self.refuse(
                scope.retention.span(),
                "answers that are kept for no time cannot be replayed",
                "Give at least as long as clients may retry, such as \"7d\".",
            );
        }
        if scope.lease.get_ref().0.is_zero() {
            self.refuse(
                scope.lease.span(),
                "a lease of no time would be over before the service is called",
                "Give it longer than a pause of the gateway may be, such as \"30s\".",
            );
        }
        if let Some(retry) = scope
            .client_retry
            .as_ref()
            .filter(|retry| retry.get_ref() > retention)
        {
            self.refuse(
                retry.span(),
                "clients may retry for longer than answers are kept",
                "Make `retention` at least as long as `client_retry`.",
            );
        }
        if let Some(wait) = scope
            .wait_timeout
            .as_ref()
            .filter(|_| scope.busy != Busy::Wait)
        {
            self.refuse(
                wait.span(),
                "duplicates wait only if `busy` is \"wait\"",
                "Add busy = \"wait\", or leave `wait_timeout` out.",
            );
        }
        let tombstone = scope.tombstone_for.as_ref();
        if let Some(tombstone) = tombstone.filter(|_| scope.after_expiry != AfterExpiry::Gone) {
            self.refuse(
                tombstone.span(),
                "there is no tombstone unless `after_expiry` is \"gone\"",
                "Add after_expiry = \"gone\", or leave `tombstone_for` out.",
            );
        }
    }

    fn routes(&mut self) {
        let tables = &self.config.tables;
        if tables.routes.is_empty() {
            self.refuse(
                0..0,
                "there are no routes",
                "Add one: [[routes]] with `path` and `upstream`.",
            );
        }
        for route in &tables.routes {
            if !tables.upstreams.contains_key(route.upstream.get_ref()) {
                self.refuse(
                    route.upstream.span(),
                    format!("there is no upstream {:?}", route.upstream.get_ref()),
                    known(
                        "[upstreams.NAME]",
                        tables.upstreams.keys().map(String::as_str),
                    ),
                );
            }
            for method in route
                .methods
                .iter()
                .filter(|verb| verb.get_ref().0 == Method::CONNECT)
            {
                self.refuse(
                    method.span(),
                    "tunnels are not offered",
                    "Leave CONNECT out.",
                );
            }
            self.once(route);
        }
    }

    fn once(&mut self, route: &Route) {
        let Some(once) = &route.once else { return };
        self.statuses(once);
        self.known_scope(&once.scope);
        if route.methods.is_empty() {
            self.refuse(
                route.path.span(),
                "a route that happens once must say for which methods",
                "Add methods = [\"POST\"]; reading needs no key.",
            );
        }
        for method in route
            .methods
            .iter()
            .filter(|verb| verb.get_ref().0.is_safe())
        {
            self.refuse(
                method.span(),
                format!(
                    "{} only reads: it needs no key, and its answer must not be frozen",
                    method.get_ref().0
                ),
                "Leave it out here; a route without [routes.once] passes it on.",
            );
        }
        for size in [&once.max_body, &once.max_response] {
            if size.get_ref().0 == 0 {
                self.refuse(
                    size.span(),
                    "a limit of no bytes would refuse every request",
                    "Give as much as the largest body has, such as \"1 MiB\".",
                );
            }
            if u32::try_from(size.get_ref().0).is_err() {
                self.refuse(
                    size.span(),
                    "bodies of routes that happen once are held in memory, each whole",
                    "Give less than \"4 GiB\"; much less is better.",
                );
            }
        }
        self.memory(once);
        for caller in [&once.principal, &once.tenant] {
            let Principal::Header(name) = caller.get_ref() else {
                continue;
            };
            if !CREDENTIALS.contains(&name.as_str()) {
                continue;
            }
            self.refuse(
                caller.span(),
                format!("`{name}` carries a credential, not a principal: a new token between two tries would make two requests of one"),
                "Name the header in which your authentication puts the user or account, such as \"X-User-Id\".",
            );
        }
    }

    /// The memory for requests has room for one with the largest body of the route.
    fn memory(&mut self, once: &Once) {
        let memory = &self.config.tables.listen.memory;
        let least = once.max_body.get_ref().0.saturating_add(PER_REQUEST);
        if memory.get_ref().0 < least {
            let given = Some(memory.span()).filter(|span| !span.is_empty());
            self.refuse(
                given.unwrap_or_else(|| once.max_body.span()),
                "a request with a body of `max_body` would always be answered with 503",
                format!(
                    "Give `memory` in [listen] {least} bytes or more: 16 KiB beside `max_body`."
                ),
            );
        }
    }

    fn statuses(&mut self, once: &Once) {
        let all: Vec<_> = once.statuses.all().collect();
        for (number, (status, _)) in all.iter().enumerate() {
            let earlier = &all[..number];
            if earlier
                .iter()
                .any(|(other, _)| other.get_ref() == status.get_ref())
            {
                self.refuse(
                    status.span(),
                    format!(
                        "{} is listed twice in `statuses`",
                        status.get_ref().0.as_u16()
                    ),
                    "Keep it in one of keep, refuse, retry and forget.",
                );
            }
        }
    }

    /// Of two routes that match the same request one must be the narrower, or it would be unclear
    /// from the file which holds.
    fn overlaps(&mut self) {
        let routes = &self.config.tables.routes;
        for (number, later) in routes.iter().enumerate() {
            for earlier in &routes[..number] {
                let (one, other) = (later.path.get_ref(), earlier.path.get_ref());
                if !shares_methods(later, earlier)
                    || !one.overlaps(other)
                    || one.is_wider_than(other)
                    || other.is_wider_than(one)
                {
                    continue;
                }
                let line = self.text[..earlier.path.span().start].matches('\n').count() + 1;
                self.refuse(
                    later.path.span(),
                    format!("{one} and {other} (line {line}) match the same requests, and neither is the narrower"),
                    "Give them different methods, or make every path of one a path of the other: then the narrower holds.",
                );
            }
        }
    }
}

fn shares_methods(one: &Route, other: &Route) -> bool {
    let any = one.methods.is_empty() || other.methods.is_empty();
    any || one
        .methods
        .iter()
        .map(Spanned::get_ref)
        .any(|verb| other.methods.iter().any(|o| o.get_ref() == verb))
}

fn known<'a>(table: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.map(|name| format!("{name:?}")).collect();
    if names.is_empty() {
        format!("Add it as a table {table}; there is none yet.")
    } else {
        format!(
            "Add it as a table {table}, or take one of {}.",
            names.join(", ")
        )
    }
}
