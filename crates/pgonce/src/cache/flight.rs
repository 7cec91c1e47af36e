use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::{Name, lock};
use crate::ack::Done;
use crate::intent::Intent;

/// Requests that ask the database at the moment, so that duplicates of them need not ask too.
#[derive(Debug, Clone, Default)]
pub(super) struct Flights(Arc<Mutex<HashMap<Name, Known>>>);

#[derive(Debug)]
struct Known {
    fingerprint: Vec<u8>,
    landed: watch::Receiver<Option<Done>>,
}

/// One that asks. Those who wait for it ask by themselves when it is dropped.
#[derive(Debug)]
pub(crate) struct Flight {
    flights: Flights,
    name: Name,
    landing: watch::Sender<Option<Done>>,
}

/// What came of asking together with another one.
pub(super) enum Joined {
    /// The other one had this answer of the database.
    Answer(Done),
    /// Nobody else asks: this one does.
    Leader(Flight),
    /// The other one had no answer, or not in time.
    Alone,
}

impl Flights {
    pub(super) async fn join(&self, name: Name, intent: &Intent, timeout: Duration) -> Joined {
        let print = intent.fingerprint().as_bytes();
        let mut landed = {
            let mut flights = lock(&self.0);
            match flights.get(&name) {
                Some(known) if known.fingerprint != print => return Joined::Alone,
                Some(known) => known.landed.clone(),
                None => {
                    let (landing, landed) = watch::channel(None);
                    let fingerprint = print.to_vec();
                    flights.insert(
                        name,
                        Known {
                            fingerprint,
                            landed,
                        },
                    );
                    return Joined::Leader(Flight {
                        flights: self.clone(),
                        name,
                        landing,
                    });
                }
            }
        };
        match tokio::time::timeout(timeout, landed.wait_for(Option::is_some)).await {
            Ok(Ok(done)) => done.clone().map_or(Joined::Alone, Joined::Answer),
            Ok(Err(_)) | Err(_) => Joined::Alone,
        }
    }
}

impl Flight {
    /// Gives the answer of the database to those who wait for it.
    pub(super) fn land(self, done: &Done) {
        self.landing.send_replace(Some(done.clone()));
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        lock(&self.flights.0).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ack::Ack;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    fn intent(request: &str) -> Intent {
        Intent::new("orders.create", "key", request).unwrap()
    }

    async fn lead(flights: &Flights) -> Flight {
        match flights.join(Name([1; 32]), &intent("a"), SHORT).await {
            Joined::Leader(flight) => flight,
            _ => panic!("nobody else asks"),
        }
    }

    #[tokio::test]
    async fn those_who_ask_at_the_same_time_share_one_answer() {
        let flights = Flights::default();
        let flight = lead(&flights).await;
        let late = flights.join(Name([1; 32]), &intent("a"), SHORT).await;
        assert!(matches!(late, Joined::Alone), "no longer than its budget");
        let other = flights.join(Name([1; 32]), &intent("b"), LONG).await;
        assert!(matches!(other, Joined::Alone), "another request");

        let done = Done::new(Ack::status(), true, 1, 1);
        let asked = intent("a");
        let (answer, ()) = tokio::join!(flights.join(Name([1; 32]), &asked, LONG), async {
            flight.land(&done);
        });
        assert!(matches!(answer, Joined::Answer(answer) if answer == done));

        let flight = lead(&flights).await;
        let (answer, ()) = tokio::join!(flights.join(Name([1; 32]), &asked, LONG), async {
            drop(flight);
        });
        assert!(matches!(answer, Joined::Alone), "it had no answer");
        drop(lead(&flights).await);
    }
}
