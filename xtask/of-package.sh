#!/bin/sh
# Starts a test program for cargo if it belongs to a package, or if it does not:
#   of-package.sh only|without PACKAGE PROGRAM [ARGUMENT]...
set -eu
case $1:$CARGO_PKG_NAME in
only:"$2") ;;
only:*) exit ;;
without:"$2") exit ;;
esac
shift 2
exec "$@"
