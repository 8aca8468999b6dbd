#!/usr/bin/env bash
# The whole product on one machine: a Postgres, an archive folder, a gateway, a run of the producer and a follower; then
# a row goes from Postgres into the follower's SQLite. Stays until Ctrl-C.
#
#   infra/demo.sh            shows it, and stays
#   infra/demo.sh --check    ends with status 0 once the row was seen
set -euo pipefail
cd "$(dirname "$0")/.."
check=
case "${1:-}" in
  '') ;;
  --check) check=1 ;;
  *) echo "usage: infra/demo.sh [--check]" >&2; exit 2 ;;
esac

RINDLE_PG_VERSIONS=15 . infra/setup.sh
cargo build --locked --bins
bin=${CARGO_TARGET_DIR:-$PWD/target}/debug
server=/usr/lib/postgresql/15/bin
dir=$(mktemp -d -t rindle-demo-XXXXXX)
chmod 755 "$dir"
children=()

as_postgres() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && setpriv --reuid=postgres --regid=postgres --clear-groups env LC_ALL=C.UTF-8 "$@")
  else
    "$@"
  fi
}
end() {
  local child
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  for child in "${children[@]}"; do wait "$child" 2>/dev/null || true; done
  [ -e "$dir/postgres/data/postmaster.pid" ] &&
    as_postgres "$server/pg_ctl" -D "$dir/postgres/data" -m fast -w stop >/dev/null || true
  rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM

step() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() {
  printf '\ndemo: %s\n' "$*" >&2
  tail -n 20 "$dir"/*.log >&2 2>/dev/null || true
  exit 1
}
# until_seen SECONDS COMMAND…: looks every 50 ms.
until_seen() {
  local end=$(($(date +%s%N) + $1 * 1000000000))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s%N)" -lt "$end" ] || return 1
    sleep 0.05
  done
}
# start NAME COMMAND…: runs a program and waits for its ready line, which goes to NAME.ready.
start() {
  local name=$1
  shift
  "$@" >"$dir/$name.ready" 2>"$dir/$name.log" &
  children+=($!)
  until_seen 30 grep -q '"ready": *true' "$dir/$name.ready" || fail "$name printed no ready line"
  cat "$dir/$name.ready"
}
port_of() { sed -n "s/.*\"$2\": *\([0-9]*\).*/\1/p" "$dir/$1.ready"; }
free_port() { python3 - <<'PY' 2>/dev/null || echo $((20000 + RANDOM % 20000))
import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])
PY
}
pgport=$(free_port)
sql() { psql -X -q -At -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$pgport" -U postgres -d postgres -c "$1"; }
ready() { # answers 200
  local status
  exec 8<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET /readyz HTTP/1.0\r\n\r\n' >&8
  read -r _ status _ <&8
  exec 8>&-
  [ "$status" = 200 ]
}

step "A Postgres 15 in $dir"
mkdir "$dir/postgres"
[ "$(id -u)" = 0 ] && chown postgres: "$dir/postgres"
as_postgres "$server/initdb" -D "$dir/postgres/data" -U postgres -A trust -E UTF8 -N --locale=C.UTF-8 >"$dir/initdb.log"
cat >>"$dir/postgres/data/postgresql.conf" <<CONF
port = $pgport
listen_addresses = '127.0.0.1'
unix_socket_directories = '$dir/postgres'
wal_level = logical
CONF
as_postgres "$server/pg_ctl" -D "$dir/postgres/data" -l "$dir/postgres/server.log" -w start >/dev/null
sql "create table issue(id int primary key, title text, opened timestamptz default now())"
sql "insert into issue(id, title) select n, 'issue ' || n from generate_series(1, 1000) n"

step "prepare and mint"
pg=(--pg-host 127.0.0.1 --pg-port "$pgport" --pg-user postgres --pg-database postgres --pg-sslmode disable)
mkdir "$dir/archive"
"$bin/rindle" pg prepare "${pg[@]}" --source app --tables public.issue
"$bin/rindle" pg mint "${pg[@]}" --source app --store filesystem --path "$dir/archive"

step "gateway"
cat >"$dir/gateway.json" <<JSON
{"name": "app", "dataDir": "$dir/gateway", "grpcPort": 0, "httpPort": 0,
 "postgres": {"host": "127.0.0.1", "port": $pgport, "user": "postgres", "database": "postgres", "sslMode": "disable"},
 "backup": {"type": "filesystem", "path": "$dir/archive"}}
JSON
start gateway "$bin/rindle-pg-gateway" --config "$dir/gateway.json"
until_seen 60 ready "$(port_of gateway httpPort)" || fail "the gateway did not become ready"

step "producer: an image of the first copy"
"$bin/rindle" backup producer --source app --store filesystem --path "$dir/archive" --scratch "$dir/scratch.db"

step "follower"
cat >"$dir/rindled.json" <<JSON
{"db": "$dir/mirror.db", "httpPort": 0, "wsPort": 0,
 "sources": [{"kind": "pg-gateway", "name": "app", "url": "http://127.0.0.1:$(port_of gateway grpcPort)",
              "backup": {"type": "filesystem", "path": "$dir/archive"}}]}
JSON
start follower "$bin/rindled" --config "$dir/rindled.json"
until_seen 60 ready "$(port_of follower httpPort)" || fail "the follower did not become ready"
mirror() { sqlite3 -readonly "$dir/mirror.db" "$1"; }
echo "rows in SQLite: $(mirror 'select count(*) from issue')"

step "A row is written in Postgres, and read in SQLite"
seen() { [ -n "$(mirror 'select 1 from issue where id = 4711')" ]; }
sql "insert into issue(id, title) values (4711, 'written in Postgres')"
written=$(date +%s%N)
until_seen 1 seen || fail "the row is not in SQLite after a second"
echo "seen after $((($(date +%s%N) - written) / 1000000)) ms: $(mirror 'select * from issue where id = 4711')"
[ -n "$check" ] && exit 0

step "Running. Try:"
cat <<TEXT
  psql -h 127.0.0.1 -p $pgport -U postgres -d postgres -c "update issue set title = 'changed' where id = 1"
  sqlite3 -readonly $dir/mirror.db "select * from issue where id = 1"
  curl -s http://127.0.0.1:$(port_of gateway httpPort)/readyz
Ctrl-C ends everything and removes $dir.
TEXT
wait "${children[@]}"
fail "a program ended"
