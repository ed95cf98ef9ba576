#!/bin/sh
# Installs Chromium, which test_dashboard.py drives.
set -eu
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing chromium"
$as_root apt-get update -qq
if ! $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; then
    echo "chromium cannot be installed here (apt-get install chromium): the dashboard cannot be tested in a browser" >&2
    exit 1
fi
