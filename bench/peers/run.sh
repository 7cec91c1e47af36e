#!/usr/bin/env bash
# Measures pgonce beside libraries that make the same promise or a weaker one, on one private PostgreSQL and one private
# Redis, in one run. They come from pip and cargo into a scratch folder, .cache/peers; nothing of it is a dependency.
# usage: bench/peers/run.sh [--seconds N] [--connections N] [--rounds N] [--only NAME]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
scratch=${PGONCE_CACHE:-$root/.cache}/peers
command -v redis-server >/dev/null || { echo "there is no redis-server: run scripts/setup" >&2; exit 1; }
mkdir -p "$scratch"
if ! cmp -s "$here/requirements.txt" "$scratch/installed.txt"; then
    "${PYTHON:-python3}" -m venv "$scratch/python"
    "$scratch/python/bin/python" -m pip install -q --disable-pip-version-check -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$scratch/installed.txt"
fi
# A copy: it has a workspace and a lock file of its own.
mkdir -p "$scratch/rust/src"
sed "s|@PGONCE@|$root/crates/pgonce|" "$here/rust/Cargo.toml" >"$scratch/rust/Cargo.toml"
cp "$here/rust/src/"*.rs "$scratch/rust/src/"
# What both use is of one version.
[ -e "$scratch/rust/Cargo.lock" ] || cp "$root/Cargo.lock" "$scratch/rust/Cargo.lock"
cargo build --quiet --release --manifest-path "$scratch/rust/Cargo.toml"
# Its tables lie beside its source.
obix=$(cargo metadata --quiet --format-version 1 --manifest-path "$scratch/rust/Cargo.toml" |
    python3 -c 'import json, sys; print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "obix"))')
PYTHONWARNINGS=ignore PYTHONPATH="$root/clients/python/src:$root/clients/python/tests" \
    exec "$scratch/python/bin/python" "$here/peers.py" --rust "$scratch/rust/target/release/peers" --obix "$(dirname "$obix")/migrations" "$@"
