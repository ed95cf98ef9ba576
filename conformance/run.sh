#!/bin/sh
# Installs what is missing and runs the whole suite (with CATTLEGRID_SET_UP set, all is installed). Arguments go to pytest: --server-bin PATH, -k NAME, -x, test_FILE.py ...
set -eu
here=$(cd "$(dirname "$0")" && pwd)
from=$PWD
absolute() {
    case $1 in
    /*) printf '%s' "$1" ;;
    *) printf '%s/%s' "$from" "$1" ;;
    esac
}
# As one word, since pytest would take a path of its own for a place to find tests.
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    --server-bin)
        argument=--server-bin=$(absolute "$1")
        shift
        count=$((count - 1))
        ;;
    --server-bin=*) argument=--server-bin=$(absolute "${argument#--server-bin=}") ;;
    esac
    set -- "$@" "$argument"
done
if [ -n "${CATTLEGRID_BIN:-}" ]; then
    CATTLEGRID_BIN=$(absolute "$CATTLEGRID_BIN")
    export CATTLEGRID_BIN
fi
[ -n "${CATTLEGRID_SET_UP:-}" ] || "$here/setup.sh"
cd "$here"
exec "$here/../target/conformance/venv/bin/python" -m pytest "$@"
