#!/bin/sh
# Installs what was built into a root directory: install.sh [DESTDIR]. The helpers of mount(8) and
# fsck(8) are links, which these look for in /sbin. Man pages and completions come from the program.
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
# The loader chooses one of these by the platform of a program: ld.so(8), $PLATFORM.
for platform in x86_64 haswell xeon_phi '$PLATFORM' i386 i486 i586 i686; do
    mkdir -p "$to/usr/lib/warren/$platform"
    cp -Pf "${library%/*}/$platform/${library##*/}" "$to/usr/lib/warren/$platform/"
done
install -D -m 0644 packaging/systemd/warren@.service \
    "$to/usr/lib/systemd/system/warren@.service"
install -D -m 0644 packaging/magic/warren "$to/usr/share/warren/magic"
mkdir -p "$to/usr/sbin"
for name in mount.warren mount.fuse.warren umount.warren umount.fuse.warren fsck.warren mkfs.warren; do
    ln -sf ../bin/warren "$to/usr/sbin/$name"
done

documents=$(mktemp -d)
trap 'rm -rf "$documents"' EXIT
"$program" documents "$documents"
share=$to/usr/share
gzip -9n "$documents"/man?/*
for page in "$documents"/man?/*; do
    section=${page%/*}
    install -D -m 0644 "$page" "$share/man/${section##*/}/${page##*/}"
done
for name in mount umount; do
    ln -sf "$name.warren.8.gz" "$share/man/man8/$name.fuse.warren.8.gz"
done
for name in fsck mkfs; do
    ln -sf "../man1/warren-$name.1.gz" "$share/man/man8/$name.warren.8.gz"
done
install -D -m 0644 "$documents/bash/warren" "$share/bash-completion/completions/warren"
install -D -m 0644 "$documents/zsh/_warren" "$share/zsh/vendor-completions/_warren"
install -D -m 0644 "$documents/fish/warren.fish" "$share/fish/vendor_completions.d/warren.fish"
# The pages refer to each other by these paths.
for text in README.md LICENSE-APACHE LICENSE-MIT docs/operations.md docs/performance.md docs/user/*.md; do
    install -D -m 0644 "$text" "$share/doc/warren/$text"
done
