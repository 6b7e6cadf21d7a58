#!/bin/sh
# Puts Debian's nfs-ganesha, an NFS server that needs nothing of the kernel, into a folder and prints it. Nothing is
# installed into the system.
#
#   tests/real_node/nfs-server.sh [folder]      default: nfs-ganesha in the cache of outside tools
set -eu

cache=${HARVESTER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider/tools}
folder=${1:-$cache/nfs-ganesha}
packages='nfs-ganesha nfs-ganesha-vfs'

if [ -x "$folder/usr/bin/ganesha.nfsd" ]; then
    echo "$folder"
    exit 0
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
cd "$fresh"
# shellcheck disable=SC2086
all=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    $packages 2>>errors | sed -n 's/^\([a-z0-9][a-z0-9+.-]*\)$/\1/p' | sort -u |
    grep -E '^(lib|nfs-ganesha)' | grep -Ev 'perl|python|^libc6$')
# shellcheck disable=SC2086
known=$(apt-cache --no-all-versions show $all 2>>errors | sed -n 's/^Package: //p' | sort -u)
# shellcheck disable=SC2086
apt-get download --quiet=2 $known 2>>errors || true
for package in $packages; do
    ls "$package"_*.deb >/dev/null 2>&1 || {
        cat errors >&2
        echo "apt-get does not fetch $package: \"apt-get update\" first" >&2
        exit 1
    }
done
mkdir root
for file in ./*.deb; do
    dpkg-deb --extract "$file" root
done
mkdir -p "$(dirname "$folder")"
rm -rf "$folder.new"
mv root "$folder.new"
# under its name only when it is whole
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "$folder"
