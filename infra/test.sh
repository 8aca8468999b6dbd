#!/usr/bin/env bash
# Sets the machine up and runs every test: format, lints, unit tests, the drills on real servers. Ends with the test
# runner's own summary. An ignored test, a layer far over its budget or a layer that ran no test fails the run. On two quiet
# cores the whole takes about an hour from nothing, and half of that once it was built.
#
#   RINDLE_PG_VERSIONS="15 17"   servers for the drills; the first runs all of them, each other one those named below
#   RINDLE_KILLS=50              more kills a program than CI's 10
#   RINDLE_FULL=1                the long forms: a transaction of 2 GiB, a follower that stands still for a minute
#   RINDLE_BACKTRACE=1           backtraces of tests that fail; without it none, whatever the caller's RUST_BACKTRACE
#   RINDLE_BUDGET=2              a layer is ended after its budget times this: machines differ, and are busy at times
#   SEED=n                       the seed that a failed run printed
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=infra/setup.sh
. infra/setup.sh

export CARGO_TERM_COLOR=never
# Backtraces fill the end of a log, where the failure should stand.
export RUST_BACKTRACE="${RINDLE_BACKTRACE:-0}"
took=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# layer NAME BUDGET-SECONDS COMMAND…: the budget is a promise to who waits for CI; past it the layer is ended and fails.
layer() {
  local name=$1 budget=$(($2 * ${RINDLE_BUDGET:-2})) begun=$SECONDS
  shift 2
  printf '\n== %s (at most %s s)\n' "$name" "$budget"
  if ! timeout --foreground --kill-after=20 "$budget" "$@" 2>&1 | tee "$logs/out"; then
    printf '\n%s failed after %s s (budget %s s)\n' "$name" "$((SECONDS - begun))" "$budget"
    exit 1
  fi
  took+=("$name: $((SECONDS - begun)) of $budget s")
}

# As layer, for cargo test: what was ignored was not tested.
tests() {
  layer "$@"
  grep -qE '^test result: ok\. [1-9]' "$logs/out" || { echo "$1 ran no test"; exit 1; }
  if grep -qE '^test result: .* [1-9][0-9]* ignored' "$logs/out"; then
    echo "$1: a test was ignored; a test that cannot run here is to be mended or taken out"
    exit 1
  fi
}

layer format 60 cargo fmt --all --check
layer lints 900 cargo lint
layer build 1200 cargo build --workspace --bins --locked
layer "README's first command" 180 infra/demo.sh --check
layer "build of tests" 900 cargo test --workspace --locked --no-run
# Always the whole workspace, and then which targets: another choice of crates has other features, and is built anew.
tests "unit tests" 300 cargo test --workspace --locked --lib --bins --test main
# The same archive in the bucket of a real server: the program that was just built.
archive=$(cargo test --workspace --locked --lib --no-run 2>&1 |
  sed -n 's/.*Executable unittests .*(\(.*rindle_archive-[^)]*\)).*/\1/p')
tests "the archive in a bucket" 240 env RINDLE_TEST_STORE=bucket "$archive"
for version in $RINDLE_PG_VERSIONS; do
  export RINDLE_PG_VERSION=$version
  [ "$version" = "${RINDLE_PG_VERSIONS%% *}" ] && continue
  core=(end_to_end cases:: property:: reconnect::a_restarted)
  # What a schema change does, and how a server stops at one, differs most between the oldest and the newest server.
  if [ "$version" = 18 ] || [ -n "${RINDLE_FULL:-}" ]; then
    core+=(schema::every_migration_is_followed refusals::each degraded::b7_triggers)
  fi
  tests "drills on Postgres $version" 450 cargo test --workspace --locked --test drills -- \
    --test-threads 3 "${core[@]}"
done
# The full drills come last: their summary is the last line that is printed. Most of them wait more than they work, so
# more of them than there are cores run at a time.
export RINDLE_PG_VERSION=${RINDLE_PG_VERSIONS%% *}
full=1500
[ -n "${RINDLE_FULL:-}" ] && full=3600
[ "${RINDLE_KILLS:-10}" -gt 10 ] && full=3600
tests "drills on Postgres $RINDLE_PG_VERSION" "$full" cargo test --workspace --locked \
  --test backfill --test fanout --test drills -- --test-threads 3
printf '\n%s\n' "${took[@]}"
printf 'whole run: %s s\n' "$SECONDS"
grep -E '^test result: ok\. [1-9]' "$logs/out" | tail -n 1
