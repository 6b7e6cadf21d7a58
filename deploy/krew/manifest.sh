#!/bin/sh
# Prints the manifest of the plugin for krew, with the sha256 of archives that are there: for an index of your own, or for
# `kubectl krew install --manifest=harvester.yaml --archive=ARCHIVE`.
#
#   manifest.sh VERSION URL HOMEPAGE ARCHIVE...
#
# VERSION is v and a semantic version; URL is where the archives can be downloaded, without their names. The archives are
# NAME-linux-amd64.tar.gz, NAME-linux-arm64.tar.gz, each with harvester-cloud-provider and LICENSE in it.
set -eu

fail() {
    echo "manifest.sh: $*" >&2
    exit 1
}

[ $# -ge 4 ] || fail "usage: manifest.sh VERSION URL HOMEPAGE ARCHIVE..."
version=$1 url=${2%/} homepage=$3
shift 3
case $version in
v[0-9]*.[0-9]*.[0-9]*) ;;
*) fail "$version is no version: write it as v1.2.3" ;;
esac
case $version$url$homepage in
*[!A-Za-z0-9._~:/%+-]*) fail "version and addresses have only letters, digits and ._~:/%+-" ;;
esac
case $url in
https://*) ;;
*) fail "$url is no address: krew downloads by https://" ;;
esac

cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: harvester
spec:
  version: $version
  homepage: $homepage
  shortDescription: Look at a guest cluster and its Harvester
  description: |
    Shows both clusters on one screen (status), explains why a Service has its address or has none (explain), checks
    what is in order (doctor), finds what is left behind (orphans), and makes and checks the credentials of guest
    clusters (cloud-config).
  caveats: |
    For completion by kubectl put a link kubectl_complete-harvester beside the plugin:
      ln -s "\$(command -v kubectl-harvester)" "\$HOME/.krew/bin/kubectl_complete-harvester"
  platforms:
END
for archive in "$@"; do
    case $archive in
    *-linux-amd64.tar.gz) arch=amd64 ;;
    *-linux-arm64.tar.gz) arch=arm64 ;;
    *) fail "$archive: archives end with -linux-amd64.tar.gz or -linux-arm64.tar.gz" ;;
    esac
    [ -r "$archive" ] || fail "$archive cannot be read"
    sum=$(sha256sum "$archive" 2>/dev/null || shasum -a 256 "$archive")
    cat <<END
  - selector:
      matchLabels:
        os: linux
        arch: $arch
    uri: $url/${archive##*/}
    sha256: ${sum%% *}
    files:
    - from: harvester-cloud-provider
      to: kubectl-harvester
    - from: LICENSE
      to: .
    bin: kubectl-harvester
END
done
