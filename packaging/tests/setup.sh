#!/bin/sh
# Installs what the tests of packages need: Debian packages (only those missing), and linters in target/package/venv.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
missing=
need() { # need PROGRAM PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need mmdebstrap mmdebstrap
need systemd-nspawn systemd-container
need nsenter util-linux
need man man-db
need fish fish
need zsh zsh
need mandoc mandoc
need dpkg-shlibdeps dpkg-dev
if [ -n "$missing" ]; then
    echo "setup: installing$missing"
    # Stages run side by side, and apt-get does not wait for another one.
    apt="flock $root/target/apt.lock apt-get"
    # shellcheck disable=SC2086 # several words
    $apt update -qq
    # shellcheck disable=SC2086 # several packages
    DEBIAN_FRONTEND=noninteractive $apt install -qq -y --no-install-recommends $missing >/dev/null
fi
venv=$root/target/package/venv
if ! cmp -s "$root/packaging/tests/requirements.txt" "$venv/installed.txt"; then
    echo "setup: installing linters"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$root/packaging/tests/requirements.txt"
    cp "$root/packaging/tests/requirements.txt" "$venv/installed.txt"
fi
