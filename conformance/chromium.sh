#!/bin/sh
# shellcheck disable=SC2086 # several words
# Installs Chromium, which test_dashboard.py drives.
set -eu
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
# Stages run side by side, and apt-get does not wait for another one.
apt="flock $(cd "$(dirname "$0")/.." && pwd)/target/apt.lock apt-get"
echo "installing chromium"
$as_root $apt update -qq
if ! $as_root env DEBIAN_FRONTEND=noninteractive $apt install -y -qq --no-install-recommends chromium; then
    echo "chromium cannot be installed here (apt-get install chromium): the dashboard cannot be tested in a browser" >&2
    exit 1
fi
