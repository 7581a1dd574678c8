#!/bin/sh
# Installs what was built into a root directory: install.sh [DESTDIR]. The helpers of mount(8) are
# links, and mount(8) looks for them in /sbin.
set -eu
to=${1:-}
case $to in
    '' | /*) ;;
    *) to=$PWD/$to ;;
esac
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
program=$target/release/warren
library=$target/interposer/libwarren_interpose.so
for built in "$program" "$library"; do
    if [ ! -f "$built" ]; then
        echo "install.sh: $built is not built; build it as README.md says" >&2
        exit 1
    fi
done
install -D -m 0755 "$program" "$to/usr/bin/warren"
install -D -m 0755 "$library" "$to/usr/lib/warren/libwarren_interpose.so"
install -D -m 0644 packaging/systemd/warren@.service \
    "$to/usr/lib/systemd/system/warren@.service"
mkdir -p "$to/usr/sbin"
for name in mount.warren mount.fuse.warren umount.warren umount.fuse.warren; do
    ln -sf ../bin/warren "$to/usr/sbin/$name"
done
