# For the scripts beside it, which put Debian packages into folders: `. "$(dirname "$0")/debian.sh"`. Nothing is installed
# into the system; root is not needed.
# shellcheck shell=sh

cache=${HARVESTER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider/tools}

# Unpacks packages into ./unpacked of a folder that goes with the script. Of the others a release of Debian or Ubuntu may
# lack some; the first has to be there.
unpack() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || {
        echo "$1 comes from a Debian package: this machine has no apt-get, or no dpkg-deb" >&2
        exit 1
    }
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    cd "$fresh"
    for package in "$@"; do
        apt-get download --quiet=2 "$package" 2>>errors || echo "no package $package" >>errors
    done
    ls "$1"_*.deb >/dev/null 2>&1 || {
        cat errors >&2
        echo "apt-get does not know $1: \"apt-get update\" first" >&2
        exit 1
    }
    for archive in ./*.deb; do
        dpkg-deb --extract "$archive" unpacked
    done
}

# Puts a folder under its name when it is whole.
put() {
    mkdir -p "$(dirname "$2")"
    rm -rf "$2.new"
    mv "$1" "$2.new"
    rm -rf "$2"
    mv "$2.new" "$2"
}
