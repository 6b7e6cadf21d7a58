#!/bin/sh
# Puts Debian's xfsprogs into a folder, for the CSI driver's tests with real file systems, and prints the folder to add
# to PATH. Nothing is installed into the system; root is not needed. A machine that has mkfs.xfs needs none of it.
#
#   tests/xfsprogs.sh [folder]      default: xfsprogs in the cache of outside tools
set -eu

cache=${HARVESTER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider/tools}
folder=${1:-$cache/xfsprogs}
packages='xfsprogs libinih1 liburcu8t64 liburcu8 libedit2 libbsd0 libmd0'

if [ -x "$folder/bin/mkfs.xfs" ]; then
    echo "$folder/bin"
    exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
    echo "xfsprogs comes from a Debian package: this machine has no apt-get, or no dpkg-deb" >&2
    exit 1
}
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
cd "$fresh"
# one by one: which of them exist depends on the release of Debian or Ubuntu
for package in $packages; do
    apt-get download --quiet=2 "$package" 2>>errors || echo "no package $package" >>errors
done
ls xfsprogs_*.deb >/dev/null 2>&1 || {
    cat errors >&2
    echo 'apt-get does not know xfsprogs: "apt-get update" first' >&2
    exit 1
}
for file in ./*.deb; do
    dpkg-deb --extract "$file" unpacked
done
mkdir -p "$(dirname "$folder")" unpacked/bin
# the programs find the libraries that came with them, and nothing else on the machine does
libraries=$(find unpacked -name 'lib*.so.*' -exec dirname {} + | sort -u | sed "s|^unpacked|$folder|" | paste -sd: -)
for program in unpacked/sbin/*xfs* unpacked/usr/sbin/xfs_*; do
    [ -f "$program" ] || continue
    wrapper=unpacked/bin/$(basename "$program")
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$libraries" "$folder${program#unpacked}" >"$wrapper"
    chmod 755 "$wrapper"
done
rm -rf "$folder.new"
mv unpacked "$folder.new"
# under its name only when it is whole
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "$folder/bin"
