//! A database with a witness that nothing but pgonce keeps from seeing an effect twice, and consumers over it.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgonce::driver::Driver;
use pgonce::driver::tokio_postgres::TokioPostgres;
use pgonce::inbox::{Contract, Inbox, Message, Tx};
use pgonce::{Once, Result};
use pgonce_broker::sources::{Channel, ChannelSource};
use pgonce_broker::{Consumer, Handler, Source};

pub use crate::running::{DEADLINE, Running};
use crate::{TestDriver as _, World};

/// The driver of these tests.
pub type Db = TokioPostgres;

/// What the handler does with a message beside its effect, by its id.
type Script = Arc<dyn Fn(&str) -> Result<()> + Send + Sync>;

/// Leaves one row for each time it is called; fails as scripted, after that.
#[derive(Clone, Default)]
pub struct Witness {
    consumer: String,
    script: Arc<Mutex<Option<Script>>>,
}

impl Witness {
    /// Of the consumer of this name.
    pub fn of(consumer: &str) -> Self {
        Self {
            consumer: consumer.to_owned(),
            script: Arc::default(),
        }
    }

    /// From now on each message gets what the script says.
    pub fn script(&self, script: impl Fn(&str) -> Result<()> + Send + Sync + 'static) {
        *self.script.lock().unwrap() = Some(Arc::new(script));
    }

    /// From now on every message is applied.
    pub fn heal(&self) {
        *self.script.lock().unwrap() = None;
    }
}

impl Handler<Db> for Witness {
    async fn apply(&self, mut tx: Tx<Db>, message: Arc<Message>) -> Result<()> {
        let sql = "insert into seen (consumer, id, key) values ($1, $2, $3)";
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&self.consumer, &message.id, &message.key];
        tx.conn().execute(sql, &row).await?;
        let script = self.script.lock().unwrap().clone();
        script.map_or(Ok(()), |script| script(&message.id))
    }
}

/// A database of a test's own.
pub struct Fixture {
    /// Where it is, with the second actor.
    pub world: World<Db>,
    /// The inbox of the database.
    pub inbox: Inbox<Db>,
    /// Where messages come from.
    pub shop: Channel,
    /// The handler of the consumer `c`.
    pub witness: Witness,
}

impl Fixture {
    /// With the contract of the consumer `c`: three attempts, short pauses.
    pub async fn new() -> Self {
        let world = World::<Db>::new().await;
        let seen = "create table seen (n bigint generated always as identity, consumer text, id text, key text)";
        world.see.run(seen).await;
        let inbox = world.owner.inbox();
        let short = Duration::from_millis(10);
        let contract = Contract::default()
            .max_attempts(3)
            .backoff(short, short * 4);
        inbox.define("c", &contract).await.unwrap();
        Self {
            inbox,
            world,
            shop: Channel::new("shop"),
            witness: Witness::of("c"),
        }
    }

    /// Another set of connections, as another process has.
    pub fn once(&self) -> Once<Db> {
        Once::tokio_postgres(TokioPostgres::connect(&self.world.url(), 6).pool().clone())
    }

    /// The consumer `c` over the shop.
    pub fn consumer(&self) -> Consumer<Db, ChannelSource, Witness> {
        let consumer = Consumer::new(&self.once(), "c", self.shop.source(), self.witness.clone());
        quick(consumer)
    }

    /// Starts that consumer.
    pub fn run(&self) -> Running {
        Running::start(self.consumer())
    }

    /// Sends messages `m1` … spread over keys by their remainder.
    pub fn send(&self, from: u64, to: u64, keys: u64) {
        for n in from..=to {
            self.shop.send(message(n, keys));
        }
    }

    /// Waits until this many messages were applied, and checks that each was applied once.
    pub async fn wait_for(&self, count: u64) {
        let there = format!("select count(distinct id) >= {count} from seen where consumer = 'c'");
        self.world.see.wait_until(&there).await;
        self.check().await;
    }

    /// Waits until the source got every acknowledgement.
    pub async fn wait_for_acks(&self, count: u64) {
        self.wait(&format!("{count} acknowledgements"), || async {
            self.shop.acked() >= count
        })
        .await;
    }

    /// Waits until this is so.
    pub async fn wait<F, Fut>(&self, what: &str, is: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = bool>,
    {
        pgonce_testkit::wait_until(what.to_owned(), DEADLINE, is)
            .await
            .unwrap();
    }

    /// Nothing was applied twice, and no key was turned round.
    pub async fn check(&self) {
        let twice = "select coalesce(string_agg(id || ' ' || n, ', '), 'none') from \
             (select consumer, id, count(*) n from seen group by 1, 2 having count(*) > 1) d";
        assert_eq!(self.world.see.text(twice).await, "none", "applied twice");
        let turned = "select count(*) from (select substr(id, 2)::bigint as sent, lag(substr(id, 2)::bigint) \
             over (partition by consumer, key order by n) as before from seen where key is not null) o where sent < before";
        assert_eq!(self.world.see.number(turned).await, 0, "turned round");
    }
}

/// The consumer with short pauses.
pub fn quick<D: Driver, S: Source, H: Handler<D>>(
    consumer: Consumer<D, S, H>,
) -> Consumer<D, S, H> {
    let pause = Duration::from_millis(5);
    consumer.backoff(pause, pause * 20).poll_stored(pause)
}

/// Message `m<n>`, of a key by its remainder.
pub fn message(n: u64, keys: u64) -> Message {
    Message::new(format!("m{n}"), format!("{{\"n\": {n}}}")).key(format!("k{}", n % keys))
}
