#!/bin/sh
# Installs what the conformance suite needs: Debian packages (only those missing), a Python environment in
# target/conformance/venv with the versions of requirements.txt, and the Node clients of node/package-lock.json.
# Says what it installs. Quick and silent about what is there already. Of two that run at the same time the second waits
# for the first; what was cut off in the middle is installed again.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
venv=$root/target/conformance/venv
mkdir -p "$root/target/conformance"
exec 9>"$root/target/conformance/.lock"
if command -v flock >/dev/null 2>&1 && ! flock -n 9; then
    echo "setup: waiting for another set-up"
    flock 9
fi

missing=
need() { # need PROGRAM-OR-FILE PACKAGE
    case $1 in
    /*) [ -e "$1" ] || missing="$missing $2" ;;
    *) command -v "$1" >/dev/null 2>&1 || missing="$missing $2" ;;
    esac
}
need memcached memcached
need memccapable libmemcached-tools
need /usr/include/libmemcached/memcached.h libmemcached-dev
need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
need openssl openssl
need promtool prometheus
# Of pages of the documentation.
need redis-server redis-server
need nc netcat-openbsd
need curl curl
need cc build-essential
need node nodejs
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
need /usr/sbin/mariadbd mariadb-server
need etcd etcd-server
need etcdctl etcd-client
need npm npm
need ruby ruby
ruby -rdalli -e 0 2>/dev/null || missing="$missing ruby-dalli"
need php php-cli
php -r 'exit(class_exists("Memcached") ? 0 : 1);' >/dev/null 2>&1 || missing="$missing php-memcached"
# Frameworks: those of Ruby, PHP and Go in Debian's versions.
ruby -ractive_support -e 0 2>/dev/null || missing="$missing ruby-activesupport"
need /usr/share/php/Symfony/Component/Cache/autoload.php php-symfony-cache
need /usr/share/php/Illuminate/Cache/autoload.php php-illuminate-cache
need go golang-go
need /usr/share/gocode/src/github.com/bradfitz/gomemcache/memcache/memcache.go golang-github-bradfitz-gomemcache-dev
# With it libmemcached logs in, that of PHP and that of pylibmc.
ls /usr/lib/*/sasl2/libplain.so >/dev/null 2>&1 || missing="$missing libsasl2-modules"
if [ -n "$missing" ]; then
    echo "setup: installing Debian packages:$missing"
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    # Stages run side by side, and apt-get does not wait for another one.
    apt="flock $root/target/apt.lock apt-get"
    # shellcheck disable=SC2086 # several words
    $as_root $apt update -qq
    # The packages start a memcached, a PostgreSQL and a MariaDB of their own, which nobody here needs.
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $apt install -y -qq --no-install-recommends $missing 9>&-
fi

stamp=$venv/.requirements
if ! cmp -s "$here/requirements.txt" "$stamp"; then
    echo "setup: installing Python clients into target/conformance/venv"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$stamp"
fi

stamp=$here/node/node_modules/.lock
if ! cmp -s "$here/node/package-lock.json" "$stamp"; then
    echo "setup: installing Node clients into conformance/node/node_modules"
    (cd "$here/node" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
    cp "$here/node/package-lock.json" "$stamp"
fi
