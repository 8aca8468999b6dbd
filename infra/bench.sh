#!/usr/bin/env bash
# Rindle beside plain COPY, pg_recvlogical and a baseline script, in one go on this machine: four workloads, several
# runs each in turn, medians with their spread, and whether the targets are met. Status 1 when a mirror was wrong.
# It takes about half an hour at full size on two cores and is not part of CI; a quiet machine gives the truer figures.
#
#   infra/bench.sh                                     all at full size
#   infra/bench.sh --json                              one document on stdout
#   infra/bench.sh --only w2,w3 --runs 3               some workloads, fewer runs
#   infra/bench.sh --rows 300000 --backlog 10000 --burst 50000 --seconds 10   smaller
#   infra/bench.sh --bin-dir target/debug              programs that are built already
#   infra/bench.sh --yardsticks                        without the product
#   TMPDIR=DIR infra/bench.sh                          where its files go (about 6 GB); user postgres must get there
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
case " $* " in *" --help "* | *" -h "*) exec python3 -B "$here/infra/bench/arguments.py" --help ;; esac

RINDLE_PG_VERSIONS=15 bash "$here/infra/setup.sh"
pin='psycopg2-binary==2.9.13'
# The system's own Python before any other: it is built for speed, and the script is to be as fast as it can be.
python=/usr/bin/python3
[ -x "$python" ] || python=python3
venv="${CARGO_TARGET_DIR:-$here/target}/bench-venv"
if [ "$(cat "$venv/pin" 2>/dev/null)" != "$python $pin" ]; then
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" >&2; then
    echo "bench: apt-get install python3-venv" >&2
    apt-get install -y -q --no-install-recommends python3 python3-venv >&2
    rm -rf "$venv"
    "$python" -m venv "$venv" >&2
  fi
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$pin" >&2
  echo "$python $pin" >"$venv/pin"
fi
exec "$venv/bin/python" -B "$here/infra/bench/main.py" "$@"
