#!/bin/sh
# Starts a test program for cargo if it belongs to one of some packages, or if it belongs to none of them:
#   of-package.sh only|without PACKAGE[,PACKAGE]... PROGRAM [ARGUMENT]...
set -eu
case ,$2, in
*,"$CARGO_PKG_NAME",*) found=only ;;
*) found=without ;;
esac
[ "$1" = "$found" ] || exit 0
shift 2
exec "$@"
