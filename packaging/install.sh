#!/bin/sh
# Installs what was built into a root directory: install.sh [DESTDIR]. The helpers of mount(8) are
# links, and mount(8) looks for them in /sbin.
set -eu
cd "$(dirname "$0")/.."
to=${1:-}
target=${CARGO_TARGET_DIR:-target}
install -D -m 0755 "$target/release/warren" "$to/usr/bin/warren"
install -D -m 0755 "$target/interposer/libwarren_interpose.so" \
    "$to/usr/lib/warren/libwarren_interpose.so"
install -D -m 0644 packaging/systemd/warren@.service \
    "$to/usr/lib/systemd/system/warren@.service"
mkdir -p "$to/usr/sbin"
for name in mount.warren mount.fuse.warren umount.warren umount.fuse.warren; do
    ln -sf ../bin/warren "$to/usr/sbin/$name"
done
