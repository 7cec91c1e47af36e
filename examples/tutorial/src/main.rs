//! Runs the service and its consumer in one process: `DATABASE_URL=postgres://… cargo run`.

// ANCHOR: main
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let once = tutorial::set_up(&std::env::var("DATABASE_URL")?).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    let stop = CancellationToken::new();

    let consumer = tokio::spawn(tutorial::keep_stock(once.clone(), stop.clone()));
    let served = axum::serve(listener, tutorial::router(&once)?).with_graceful_shutdown({
        let stop = stop.clone();
        async move {
            // Also on an error: without the signal there is no other way to stop.
            let _ = tokio::signal::ctrl_c().await;
            stop.cancel();
        }
    });
    served.await?;
    consumer.await??;
    Ok(())
}
// ANCHOR_END: main
