#!/usr/bin/env bash
# Burns a backlog of jobs down with pgonce, graphile-worker and pg-boss, on one private server, in one run.
# The other two come from npm into a scratch folder; nothing is left behind. In the end: pgonce's median rate divided by
# theirs, also with a pinned xmin, and how soon a job starts at half load.
# usage: bench/queues.sh [JOBS] [ROUNDS]
set -euo pipefail
jobs=${1:-50000} rounds=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
scratch=$(mktemp -d) data=$(mktemp -d)
bin=${PGONCE_PG_BIN:-}
for folder in "$(pg_config --bindir 2>/dev/null || true)" /usr/lib/postgresql/*/bin; do
    [ -z "$bin" ] && [ -x "$folder/initdb" ] && bin=$folder
done
[ -n "$bin" ] || { echo "no PostgreSQL found: set PGONCE_PG_BIN" >&2; exit 1; }
as=()
if [ "$(id -u)" = 0 ]; then chown postgres "$data"; as=(runuser -u postgres --); fi
port=$((20000 + RANDOM % 20000))
stop() { "${as[@]}" "$bin/pg_ctl" -D "$data/pg" -m immediate stop >/dev/null 2>&1 || true; rm -rf "$scratch" "$data"; }
trap stop EXIT
"${as[@]}" "$bin/initdb" -D "$data/pg" -U postgres -A trust >/dev/null
"${as[@]}" "$bin/pg_ctl" -D "$data/pg" -l "$data/log" -w start -o "-p $port -k $data -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=512MB \
    -c max_wal_size=8GB -c checkpoint_timeout=1h -c autovacuum=off" >/dev/null
"${as[@]}" "$bin/createdb" -h 127.0.0.1 -p "$port" -U postgres peers
npm install --loglevel=error --no-audit --no-fund --prefix "$scratch" pg graphile-worker pg-boss >/dev/null
echo "peers: jobs a second, $jobs jobs, $rounds rounds"
(cd "$scratch" && node "$here/queues.mjs" "postgres://postgres@127.0.0.1:$port/peers" "$jobs" "$rounds") | tee "$scratch/peers.jsonl"
pgonce=${PGONCE:-}
if [ -z "$pgonce" ]; then
    cargo build --release --locked --manifest-path "$root/Cargo.toml" -p pgonce-cli
    pgonce=$root/target/release/pgonce
fi
"$pgonce" bench queue --server "postgres://postgres@127.0.0.1:$port/postgres" --events "$jobs" --json "$scratch/bench.json"
node "$here/queues.mjs" summary "$scratch/peers.jsonl" "$scratch/bench.json"
