# The program `pgonce` in a small image, as a user without rights.
#
#   docker build -t pgonce .
#   docker run --rm -e DATABASE_URL pgonce migrate up
#
# FEATURES chooses what is built in: the default is everything but Kafka and the lab.
FROM rust:1.95-bookworm AS build
ARG FEATURES="probe,nats,otlp,rabbitmq,redis,webhook"
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked -p pgonce-cli --no-default-features --features "$FEATURES" \
    && cp target/release/pgonce /pgonce

FROM debian:bookworm-slim
# Authorities for TLS to PostgreSQL, brokers and webhooks; OpenSSL only for builds with Kafka.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home pgonce
COPY --from=build /pgonce /usr/local/bin/pgonce
USER 10001
# The relay's and the gateway's /healthz, /readyz and /metrics.
EXPOSE 9091
ENTRYPOINT ["pgonce"]
CMD ["--help"]
