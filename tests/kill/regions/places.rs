//! Servers that are regions, and the network between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::time::Duration;

use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::region::{Member, Rule, define_rule, join};
use pgonce::{Claim, Once};
use pgonce_testkit::{Binaries, Postgres};
use pgonce_tests::{Observer, TestDriver as _, install, intent};

use super::link::{Link, Network};

pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
const NAMES: [&str; 3] = ["eu", "us", "ap"];

/// A region.
pub(super) struct Place {
    pub(super) server: Postgres,
    pub(super) once: Once<TokioPostgres>,
    pub(super) see: Observer,
    pub(super) link: Link,
    port: Arc<AtomicU16>,
}

impl Place {
    /// The oldest version of PostgreSQL that is here, the newest, and one between, by turns.
    pub(super) async fn start(number: usize, shift: usize) -> Self {
        let all = Binaries::all().unwrap();
        let which = ([0, all.len() - 1, all.len() / 2][number % 3] + shift) % all.len();
        let mut builder = Postgres::builder().binaries(all[which].clone());
        for (name, value) in [
            ("wal_level", "logical"),
            // A network that is silent is noticed soon.
            ("wal_sender_timeout", "3s"),
            ("wal_receiver_timeout", "3s"),
            ("wal_receiver_status_interval", "1s"),
            ("wal_retrieve_retry_interval", "200ms"),
            ("shared_buffers", "32MB"),
        ] {
            builder = builder.setting(name, value);
        }
        let server = builder.start().await.unwrap();
        let database = server.create_database("shop").await.unwrap();
        install(database.url()).await.unwrap();
        Self::over(server).await
    }

    async fn over(server: Postgres) -> Self {
        let url = server.url_for("shop");
        let port = Arc::new(AtomicU16::new(server.port()));
        Self {
            once: Once::builder(TokioPostgres::connect(&url, 4))
                .build()
                .unwrap(),
            see: Observer::connect(&url).await,
            link: Link::to(port.clone()).await,
            port,
            server,
        }
    }

    pub(super) fn url(&self) -> String {
        self.server.url_for("shop")
    }

    pub(super) fn member(&self) -> Member<TokioPostgres> {
        Member::new(self.once.clone(), self.link.url_for("shop"))
    }

    /// The SQLSTATE that a claim ends with; empty where it may go on or there is an answer.
    pub(super) async fn refusal(&self, key: &str) -> String {
        match self.once.claim(&intent(key)).await {
            Ok(_) => String::new(),
            Err(error) => error.code().to_owned(),
        }
    }

    /// The fence of a new lease.
    pub(super) async fn lease(&self, key: &str) -> i64 {
        match self.once.lease(&intent(key), TIMEOUT).await.unwrap() {
            Claim::Run(lease) => lease.fence(),
            other => panic!("{other:?}"),
        }
    }
}

/// All regions.
pub(super) struct Places {
    pub(super) all: Vec<Place>,
}

impl Places {
    /// Starts so many regions, which have joined.
    pub(super) async fn start(count: usize) -> Self {
        Self::start_from(count, 0).await
    }

    /// On other versions of PostgreSQL, where there are more than two.
    pub(super) async fn start_from(count: usize, shift: usize) -> Self {
        let mut all: Vec<Place> = Vec::new();
        for (number, name) in NAMES.into_iter().enumerate().take(count) {
            let place = Place::start(number, shift).await;
            let others: Vec<_> = all.iter().map(Place::member).collect();
            let id = u8::try_from(number + 1).unwrap();
            let address = format!("https://{name}.example");
            join(&place.member(), id, name, &address, &others, TIMEOUT)
                .await
                .unwrap();
            all.push(place);
        }
        Self { all }
    }

    /// Another server takes the place of one.
    pub(super) async fn replace(&mut self, number: usize, server: Postgres) {
        let old = self.all.remove(number);
        old.port.store(server.port(), SeqCst);
        let mut place = Place::over(server).await;
        place.link = old.link;
        place.port = old.port;
        self.all.insert(number, place);
    }

    pub(super) fn members(&self) -> Vec<Member<TokioPostgres>> {
        self.all.iter().map(Place::member).collect()
    }

    pub(super) async fn rule(&self, rule: Rule) {
        define_rule(&self.members(), &rule, TIMEOUT).await.unwrap();
    }

    /// Heals the network, and waits until everything that was committed is known everywhere. Then all regions agree.
    pub(super) async fn settle(&self) {
        for place in &self.all {
            place.link.set(Network::Open);
        }
        for place in &self.all {
            let beat = place.see.text("select pgonce._beat_region()").await;
            let id = place
                .see
                .text("select id from pgonce.region where is_self")
                .await;
            for other in &self.all {
                let arrived = format!(
                    "select is_self or beat >= {beat} and not missed from pgonce.region where id = {id}"
                );
                other.see.wait_until(&arrived).await;
            }
        }
        for place in &self.all {
            place
                .see
                .wait_until("select not pgonce._merge_pending() and not exists (select from pgonce.region_pending)")
                .await;
        }
        for what in [
            "select coalesce(string_agg(i::text, E'\\n' order by tenant, scope, key), '') from pgonce.intent i where expires_at is not null",
            "select coalesce(string_agg((t.key, t.region, t.epoch, t.seq, t.kept, t.surplus, t.resolution)::text, E'\\n' \
             order by key, region, epoch, seq), '') from pgonce.region_task t",
            "select coalesce(string_agg((f.region, f.epoch, f.seq, f.kind, f.key)::text, E'\\n' \
             order by region, epoch, seq), '') from pgonce.region_fact f where f.kind <> 'beat'",
        ] {
            let first = self.all[0].see.text(what).await;
            for other in &self.all[1..] {
                assert_eq!(first, other.see.text(what).await, "{what}");
            }
        }
    }
}
