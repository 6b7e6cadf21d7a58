#!/bin/sh
# Prints where a program is that tests run: in PATH, or out of Debian's package, which is unpacked into the cache of outside
# tools.
#
#   tests/debian-program.sh promtool | shellcheck | busybox | bwrap | qemu-aarch64-static
set -eu

case ${1:-} in
promtool) package=prometheus file=usr/bin/promtool ;;
shellcheck) package=shellcheck file=usr/bin/shellcheck ;;
busybox) package=busybox-static file=bin/busybox ;;
bwrap) package=bubblewrap file=usr/bin/bwrap ;;
qemu-aarch64-static) package=qemu-user-static file=usr/bin/qemu-aarch64-static ;;
*)
    echo "usage: $0 promtool | shellcheck | busybox | bwrap | qemu-aarch64-static" >&2
    exit 1
    ;;
esac
if command -v "$1"; then
    exit 0
fi
. "$(dirname "$0")/debian.sh"
folder=$cache/$package
if [ ! -x "$folder/$file" ]; then
    unpack $package
    put unpacked "$folder"
fi
echo "$folder/$file"
