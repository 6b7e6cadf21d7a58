#!/bin/sh
# Makes what a virtual machine of the tests boots: Debian's cloud kernel, and an initramfs of Debian packages with udev and
# the programs of file systems, whose /init is the file beside this one. Nothing is installed into the system; root is not
# needed. Prints the folder: vmlinuz, initramfs.cpio, and busybox (a static program, which the tests use on this side).
#
#   tests/real_node/image.sh [folder]      default: real-node in the cache of outside tools
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${HARVESTER_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/harvester-cloud-provider/tools}
folder=${1:-$cache/real-node}
kernel=linux-image-cloud-amd64
packages='busybox-static dash e2fsprogs kmod libgcc-s1 mount nfs-common socat udev util-linux xfsprogs'
# that packages depend on for their installation, or for programs that no machine of the tests runs
unused='adduser|cdebconf|debconf|dmsetup|dpkg|init-system-helpers|install-info|libicu[0-9]*|libperl.*|libpython.*|lib.*-perl'
unused="$unused|logsave|lsb-base|mailcap|media-types|mime-support|perl.*|python3.*|rpcbind|sysvinit-utils|tar|ucf|usrmerge"
modules='crc32c_generic crc32c_intel ext4 nfs nfsv4 sd_mod virtio_net virtio_pci virtio_scsi xfs'

missing() {
    echo "$1" >&2
    exit 1
}
command -v qemu-system-x86_64 >/dev/null ||
    missing 'this machine has no qemu-system-x86_64: "apt-get install --no-install-recommends qemu-system-x86"'
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    missing "$kernel $packages come from Debian packages: this machine has no apt-get, or no dpkg-deb"
# a newer script or init makes a new image
sum=$(cat "$here/image.sh" "$here/init" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$folder/made-by" 2>/dev/null)" = "$sum" ]; then
    echo "$folder"
    exit 0
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
cd "$fresh"
# of the architecture of this machine
image=$(apt-cache depends "$kernel" 2>>errors | sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
[ -n "$image" ] || missing "apt-get does not know $kernel: \"apt-get update\" first; Debian has it, other distributions do not"
# shellcheck disable=SC2086
all=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
    $packages 2>>errors | sed -n 's/^\([a-z0-9][a-z0-9+.-]*\)$/\1/p' | sort -u | grep -Evx "$unused")
# of some alternatives nothing but the name is there
# shellcheck disable=SC2086
known=$(apt-cache --no-all-versions show $image $all 2>>errors | sed -n 's/^Package: //p' | sort -u)
# shellcheck disable=SC2086
apt-get download --quiet=2 $known 2>>errors || true
for package in $image $packages; do
    ls "$package"_*.deb >/dev/null 2>&1 || {
        cat errors >&2
        missing "apt-get does not fetch $package: \"apt-get update\" first"
    }
done

mkdir -p root/usr/bin root/usr/sbin root/usr/lib root/usr/lib64 made
for name in bin sbin lib lib64; do
    ln -s "usr/$name" "root/$name"
done
for file in ./*.deb; do
    dpkg-deb --fsys-tarfile "$file" | tar --extract --keep-directory-symlink --no-same-owner --directory root
done
cp root/boot/vmlinuz-* made/vmlinuz
cp root/bin/busybox made/busybox
rm -rf root/boot root/usr/share root/usr/lib/udev/hwdb.d root/usr/lib/udev/hwdb.bin root/var root/usr/lib/systemd/system

version=$(basename root/lib/modules/*)
made/busybox depmod -b "$PWD/root" "$version"
mkdir -p "kept/$version"
cp "root/lib/modules/$version"/modules.builtin* "root/lib/modules/$version/modules.order" "kept/$version/"
for module in $modules; do
    # a line has the module's file, a colon, and those of all that it needs
    for file in $(grep "/$module\.ko[.a-z]*:" "root/lib/modules/$version/modules.dep" | tr -d :); do
        mkdir -p "kept/$version/$(dirname "$file")"
        cp "root/lib/modules/$version/$file" "kept/$version/$file"
    done
done
rm -rf root/lib/modules
mv kept root/lib/modules
made/busybox depmod -b "$PWD/root" "$version"

# programs of busybox where no package has a better one
mkdir -p root/busybox root/etc root/proc root/sys root/dev root/run root/tmp root/csi root/var/lib/kubelet
ln -s /run root/var/run
for name in $(made/busybox --list); do
    ln -s /bin/busybox "root/busybox/$name"
done
ln -sf dash root/bin/sh
echo 'root:x:0:0::/:/bin/sh' >root/etc/passwd
echo 'root:x:0:' >root/etc/group
cp "$here/init" root/init
chmod 755 root/init
(cd root && find . | ../made/busybox cpio -o -H newc -R 0:0 >../made/initramfs.cpio 2>>../errors)

echo "$sum" >made/made-by
mkdir -p "$(dirname "$folder")"
# under its name only when it is whole
rm -rf "$folder.new"
mv made "$folder.new"
rm -rf "$folder"
mv "$folder.new" "$folder"
echo "$folder"
