#!/bin/sh
# Puts Debian's cloud-init and the Python modules that it imports into a folder, for the node driver's tests of user
# data. Nothing is installed into the system; root is not needed.
#
#   tests/cloud-init/install.sh [folder]      default: cloud-init in the cache of outside tools
set -eu

. "$(dirname "$0")/../debian.sh"
folder=${1:-$cache/cloud-init}
packages='cloud-init python3-yaml python3-jsonpatch python3-json-pointer python3-configobj python3-six python3-requests
          python3-urllib3 python3-idna python3-certifi python3-charset-normalizer python3-chardet python3-jinja2
          python3-markupsafe'

if [ -d "$folder/cloudinit" ]; then
    echo "$folder"
    exit 0
fi
unpack $packages
put unpacked/usr/lib/python3/dist-packages "$folder"
echo "$folder"
