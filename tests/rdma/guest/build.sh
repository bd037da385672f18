#!/bin/bash
# build.sh FOLDER: everything a guest with soft-RoCE needs, into FOLDER (Debian 12, root, apt reachable).
# About 20 s and 90 MB of packages. Nothing is installed for booting this machine.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
recipe=$(cat "$here/build.sh" "$here/init" | sha256sum | cut -d ' ' -f 1) # what was built from, in `ready`
if [ "$(cat ready 2>/dev/null)" = "$recipe" ]; then exit 0; fi
if [ "$(id -u)" != 0 ]; then echo "building the RDMA guest needs root" >&2; exit 1; fi
rm -rf ready packages kernel sysroot

apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    qemu-system-x86 busybox-static cpio kmod binutils xz-utils libibverbs1 librdmacm1 iproute2 >&2
# not the -cloud kernel: it lacks rdma_rxe
package=$(apt-cache depends linux-image-amd64 | awk '/Depends:/{print $2; exit}')
version=${package#linux-image-}
mkdir -p packages kernel sysroot
(cd packages && apt-get download -qq "$package" python3-pyverbs ibverbs-providers ibverbs-utils >&2)
dpkg-deb --fsys-tarfile packages/"${package}"_*.deb | tar -C kernel -x ./boot "./lib/modules/$version"
depmod -b kernel "$version"
for part in python3-pyverbs ibverbs-providers ibverbs-utils; do
    dpkg-deb -x packages/${part}_*.deb sysroot
done
# As an uncompressed ELF image QEMU boots the kernel at once, without ten seconds of emulated xz.
python3 - "kernel/boot/vmlinuz-$version" vmlinux <<'PYTHON'
import lzma, sys
image = open(sys.argv[1], "rb").read()
start = image.index(b"\xfd7zXZ\x00")
open(sys.argv[2], "wb").write(lzma.LZMADecompressor().decompress(image[start:]))
PYTHON

# initramfs: busybox, the modules needed, init
root=$(mktemp -d)
mkdir -p "$root"/{bin,dev,proc,sys,modules,host,sysroot,overlay,new}
cp /usr/bin/busybox "$root/bin/busybox"
for module in virtio_pci 9p 9pnet_virtio overlay dummy crc32_pclmul crc32_generic rdma_rxe rdma_ucm; do
    modprobe -d kernel -S "$version" --show-depends $module | awk '/^insmod/{print $2}'
done | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "$file")
    cp "$file" "$root/modules/$name"
    strip --strip-debug "$root/modules/$name"
    echo "$name" >> "$root/modules/order"
done
install -m 755 "$here/init" "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) > initrd.gz
rm -rf "$root" packages kernel
echo "$recipe" > ready
