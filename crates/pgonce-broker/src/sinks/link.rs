//! A connection that is made again when it is lost, and not more often than makes sense.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Refusal;

/// How long everybody relies on the last attempt. Many events may ask at the same moment.
const BELIEVED: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Link<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
enum State<T> {
    Up(Arc<T>),
    Down(Option<(Instant, String)>),
}

impl<T> Link<T> {
    pub(super) fn up(connection: T) -> Self {
        Self {
            state: Mutex::new(State::Up(Arc::new(connection))),
        }
    }

    /// The connection; made by `connect` where there is none.
    pub(super) async fn get(
        &self,
        connect: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<Arc<T>, String> {
        let mut state = self.state.lock().await;
        match &*state {
            State::Up(connection) => return Ok(connection.clone()),
            State::Down(Some((at, why))) if at.elapsed() < BELIEVED => return Err(why.clone()),
            State::Down(_) => {}
        }
        match connect.await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *state = State::Up(connection.clone());
                Ok(connection)
            }
            Err(refusal) => {
                let why = refusal.to_string();
                *state = State::Down(Some((Instant::now(), why.clone())));
                Err(why)
            }
        }
    }

    /// This one is of no use any more; another that was made since is left alone.
    pub(super) async fn lost(&self, connection: &Arc<T>) {
        let mut state = self.state.lock().await;
        if matches!(&*state, State::Up(current) if Arc::ptr_eq(current, connection)) {
            *state = State::Down(None);
        }
    }
}
