#!/bin/sh
# Puts Debian's xfsprogs into a folder, for the CSI driver's tests with real file systems, and prints the folder to add
# to PATH. Nothing is installed into the system; root is not needed. A machine that has mkfs.xfs needs none of it.
#
#   tests/xfsprogs.sh [folder]      default: xfsprogs in the cache of outside tools
set -eu

. "$(dirname "$0")/debian.sh"
folder=${1:-$cache/xfsprogs}
packages='xfsprogs libinih1 liburcu8t64 liburcu8 libedit2 libbsd0 libmd0'

if [ -x "$folder/bin/mkfs.xfs" ]; then
    echo "$folder/bin"
    exit 0
fi
unpack $packages
mkdir -p unpacked/bin
# the programs find the libraries that came with them, and nothing else on the machine does
libraries=$(find unpacked -name 'lib*.so.*' -exec dirname {} + | sort -u | sed "s|^unpacked|$folder|" | paste -sd: -)
for program in unpacked/sbin/*xfs* unpacked/usr/sbin/xfs_*; do
    [ -f "$program" ] || continue
    wrapper=unpacked/bin/$(basename "$program")
    printf '#!/bin/sh\nLD_LIBRARY_PATH="%s" exec "%s" "$@"\n' "$libraries" "$folder${program#unpacked}" >"$wrapper"
    chmod 755 "$wrapper"
done
put unpacked "$folder"
echo "$folder/bin"
