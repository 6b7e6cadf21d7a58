#!/bin/sh
# Prints where promtool is, which runs the tests of deploy/monitoring/rules.yaml: in PATH, or out of Debian's package, which is
# unpacked into a folder. Nothing is installed into the system; root is not needed.
#
#   tests/promtool.sh [folder]      default: prometheus in the cache of outside tools
set -eu

cache=${HARVESTER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider/tools}
folder=${1:-$cache/prometheus}

if command -v promtool; then
    exit 0
fi
if [ -x "$folder/usr/bin/promtool" ]; then
    echo "$folder/usr/bin/promtool"
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "promtool comes from the Debian package prometheus: this machine has no apt-get, or no dpkg-deb" >&2
    exit 1
}
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
cd "$fresh"
apt-get download --quiet=2 prometheus 2>errors || {
    cat errors >&2
    echo 'apt-get does not fetch prometheus: "apt-get update" first' >&2
    exit 1
}
dpkg-deb --extract prometheus_*.deb unpacked
mkdir -p "$(dirname "$folder")"
rm -rf "$folder.new"
mv unpacked "$folder.new"
# under its name only when it is whole
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "$folder/usr/bin/promtool"
