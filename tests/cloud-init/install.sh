#!/bin/sh
# Puts Debian's cloud-init and the Python modules that it imports into a folder, for the node driver's tests of user
# data. Nothing is installed into the system; root is not needed.
#
#   tests/cloud-init/install.sh [folder]      default: cloud-init in the cache of outside tools
set -eu

cache=${HARVESTER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider/tools}
folder=${1:-$cache/cloud-init}
packages='cloud-init python3-yaml python3-jsonpatch python3-json-pointer python3-configobj python3-six python3-requests
          python3-urllib3 python3-idna python3-certifi python3-charset-normalizer python3-chardet python3-jinja2
          python3-markupsafe'

if [ -d "$folder/cloudinit" ]; then
    echo "$folder"
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "cloud-init comes from a Debian package: this machine has no apt-get, or no dpkg-deb" >&2
    exit 1
}
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
cd "$fresh"
# one by one: which of them exist depends on the release of Debian or Ubuntu
for package in $packages; do
    apt-get download --quiet=2 "$package" 2>>errors || echo "no package $package" >>errors
done
ls cloud-init_*.deb >/dev/null 2>&1 || {
    cat errors >&2
    echo 'apt-get does not know cloud-init: "apt-get update" first' >&2
    exit 1
}
for file in ./*.deb; do
    dpkg-deb --extract "$file" unpacked
done
mkdir -p "$(dirname "$folder")"
rm -rf "$folder.new"
mv unpacked/usr/lib/python3/dist-packages "$folder.new"
# under its name only when it is whole
mv "$folder.new" "$folder"
echo "$folder"
