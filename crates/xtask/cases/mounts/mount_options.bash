# Mount options, remounts, and the helpers of mount(8), one function each. Run in a namespace of
# mounts of its own, in an empty directory, with WARREN, LIBRARY, CASES and CELLS.
set -euo pipefail
export LC_ALL=C
unset LD_PRELOAD

fail() { echo "$*" >&2; exit 1; }

# Runs the probe on a mount, without the library or with it.
probe() {
    local library=
    [ "$2" = kernel ] || library=$LIBRARY
    WARREN_REPORT=$PWD/report LD_PRELOAD=$library timeout 60 python3 "$CASES/options.py" "$1" "$3"
}

# How many calls one process of the last report has answered at most.
served() { sed -n 's/^served //p' report | sort -n | tail -1; }

new_pool() { rm -f pool; "$WARREN" mkfs --size 256M pool > /dev/null; }

fill() { python3 "$CASES/options.py" prepare "$1"; }

new_ext4() {
    truncate -s 64M reference
    mkfs.ext4 -q -F reference
    mount -o loop reference at
    rmdir at/lost+found
    fill at
    umount at
}

# A new pool with the files of the probe, on a fleet that serves.
new_warren() {
    new_pool
    "$WARREN" mount -o "allow_suid,allow_dev,cells=$CELLS" pool at
    fill at
    "$WARREN" umount at
}

gone() {
    for _ in $(seq 500); do
        "$WARREN" status pool > /dev/null 2>&1 || return 0
        sleep 0.02
    done
    fail "the fleet serves still"
}

end() { "$WARREN" umount at; "$WARREN" stop pool; }

# Both ways find what they find on ext4 with the same options.
options() {
    local option what way
    for option in rw ro noexec nosuid nodev nosymfollow relatime noatime strictatime \
        noatime,nodiratime sync dirsync ro,noexec,nosuid,nodev,noatime; do
        what=probe
        case $option in
            relatime | noatime | strictatime | noatime,nodiratime) what=atime ;;
            sync | dirsync) what=change ;;
        esac
        new_ext4
        mount -o "loop,$option" reference at
        probe "$what" kernel "$PWD/at" > wanted
        umount at
        for way in kernel library; do
            new_warren
            "$WARREN" mount -o "allow_suid,allow_dev,$option" pool at
            rm -f report
            probe "$what" $way "$PWD/at" > found
            diff wanted found || fail "with $option, by the $way"
            # Of a mount without links the library serves nothing.
            [ $way = kernel ] || [ $option = nosymfollow ] || [ "$(served)" -gt 2000 ] ||
                fail "with $option, the library served $(served)"
            end
        done
    done
}

# Sends the probe a line after each of these remounts, and waits for its answers.
remounted() {
    local way=$1 remount=$2 number=0 option
    rm -f lines report
    mkfifo lines
    probe remount "$way" "$PWD/at" < lines > found &
    local probe=$!
    exec 7> lines
    for option in rw ro rw,noexec exec,nodiratime ro rw; do
        $remount "$option"
        echo "$option" >&7
        number=$((number + 1))
        for _ in $(seq 500); do
            [ "$(grep -c '^done' found)" = $number ] && break
            sleep 0.02
        done
    done
    exec 7>&-
    wait $probe
}

remount_ext4() { mount -o "remount,$1" at; }
remount_warren() { "$WARREN" mount -o "remount,$1" pool at; }
# As mount(8) does it without a helper. Nothing waits until it is known.
remount_raw() { mount -i -o "remount,$1" at; }

remounts() {
    local way how
    new_ext4
    mount -o loop,nosuid,nodev reference at
    remounted kernel remount_ext4
    umount at
    mv found wanted
    for way in kernel library; do
        for how in remount_warren remount_raw; do
            new_warren
            "$WARREN" mount pool at
            remounted $way $how
            diff wanted found || fail "by the $way, $how"
            end
        done
    done
    new_warren
    "$WARREN" mount pool at
    atimes_after_remounts
    writers
    for option in suid dev dirsync allow_suid cells=3; do
        code=0
        "$WARREN" mount -o "remount,$option" pool at 2> errors || code=$?
        [ $code = 2 ] && [ "$(wc -l < errors)" = 1 ] || fail "remount,$option: $code $(cat errors)"
    done
    end
}

# Whether a read sets the access time of a file that was read since its last change.
sets_atime() {
    touch -a -d '2000-01-01' at/file
    touch -m -d '1999-01-01' at/file
    sleep 0.01
    touch -a -d "$(date -d '1 hour' +@%s)" at/file
    local before
    before=$(stat -c %x at/file)
    cat at/file > /dev/null
    [ "$(stat -c %x at/file)" != "$before" ]
}

atimes_after_remounts() {
    ! sets_atime || fail "relatime"
    "$WARREN" mount -o remount,strictatime pool at
    sets_atime || fail "strictatime after a remount"
    "$WARREN" mount -o remount,noatime pool at
    ! sets_atime || fail "noatime after a remount"
    "$WARREN" mount -o remount,strictatime,ro pool at
    "$WARREN" status | grep -q '(noatime)' || fail "ro sets access times"
    "$WARREN" mount -o remount,relatime,rw pool at
}

# A file that is open for writing: a remount to ro is refused, or its next write fails.
writers() {
    local way library
    for way in kernel library; do
        library=
        [ $way = kernel ] || library=$LIBRARY
        rm -f lines report
        mkfifo lines
        WARREN_REPORT=$PWD/report LD_PRELOAD=$library timeout 60 \
            python3 "$CASES/options.py" writer "$PWD/at" < lines > found &
        local writer=$!
        exec 7> lines
        for _ in $(seq 500); do grep -q ready found && break; sleep 0.02; done
        code=0
        "$WARREN" mount -o remount,ro pool at 2> errors || code=$?
        [ $code = 1 ] && grep -q "open for writing" errors || fail "by the $way: $code $(cat errors)"
        # The kernel knows its own files.
        code=0
        mount -i -o remount,ro at 2> errors || code=$?
        [ $way$code = kernel32 ] || [ $way$code = library0 ] || fail "by the $way: $code"
        echo >&7
        exec 7>&-
        wait $writer
        case $way in
            kernel) grep -qx 'written 5' found ;;
            library) grep -qx 'written EROFS' found && [ "$(cat at/held)" = first ] ;;
        esac || fail "by the $way: $(cat found) $(cat at/held)"
        "$WARREN" mount -o remount,rw pool at
    done
}

# Under sync and dirsync, names that were made are there after the whole fleet was killed.
durable() {
    local option keeper
    for option in dirsync sync; do
        new_pool
        "$WARREN" mount -o "$option,cells=$CELLS" pool at
        mkdir at/dir
        for at in $(seq 50); do echo "$at" > "at/dir/$at"; mv "at/dir/$at" "at/$at"; done
        ln at/1 at/hard; ln -s x at/soft; rmdir at/dir; rm at/2
        [ $option = dirsync ] || chmod 0400 at/3
        keeper=$("$WARREN" status --json pool | grep -o '"keeper_pid":[0-9]*' | cut -d: -f2)
        kill -9 "$keeper"
        gone
        "$WARREN" umount --lazy at
        for _ in $(seq 100); do "$WARREN" mount -o "cells=$CELLS" pool at 2> errors && break; sleep 0.05; done
        [ "$(ls at | wc -l)" = 51 ] || fail "$option: $(ls at)"
        [ ! -e at/dir ] && [ ! -e at/2 ] && [ -e at/hard ] && [ -L at/soft ] || fail "$option"
        [ $option = dirsync ] || [ "$(stat -c %a at/3) $(cat at/50)" = "400 50" ] || fail "sync"
        end
    done
}

# mount(8), umount(8) and fstab call the helpers.
with_helpers() {
    mkdir -p links/upper links/work
    mount -t tmpfs none links
    mkdir -p links/upper links/work
    mount -t overlay none -o lowerdir=/usr/sbin,upperdir="$PWD/links/upper",workdir="$PWD/links/work" /usr/sbin
    for name in mount.warren mount.fuse.warren umount.warren umount.fuse.warren; do
        ln -sf "$WARREN" "/usr/sbin/$name"
    done
    : > fstab
    mount --bind fstab /etc/fstab
    # The table of libmount.
    mkdir -p /run/mount
    mount -t tmpfs none /run/mount
}

without_helpers() { umount /run/mount; umount /etc/fstab; umount /usr/sbin; umount links; }

# Without a word that libmount itself would keep, it has an entry for the mount as well.
noted() {
    mount -t warren "$pool" "$at" -o "cells=$CELLS"
    grep -q "TARGET=$at .*uhelper=warren" /run/mount/utab || fail "not noted: $(cat /run/mount/utab)"
    head -c 60M /dev/urandom > at/big
    umount "$at"
    "$WARREN" fsck -n "$pool" | grep -q sound || fail "in use after umount"
    ! grep -q "$at" /run/mount/utab || fail "noted after umount: $(cat /run/mount/utab)"
    mount -t warren "$pool" "$at" -o "cells=$CELLS"
    exec 7< at/big
    umount -r "$at"
    # A process substitution would have the file open, and nothing waits for its end.
    [[ $(grep "$at" /proc/self/mountinfo) = *" ro,"* ]] || fail "umount -r of a mount in use: $(mount)"
    exec 7<&-
    umount "$at"
    mount -n -t warren "$pool" "$at" -o "cells=$CELLS"
    ! grep -q "$at" /run/mount/utab || fail "noted by -n"
    rm at/big
    "$WARREN" umount "$at"
}

helpers() {
    new_pool
    local pool=$PWD/pool at=$PWD/at code
    with_helpers
    # Once it is mounted it serves, and after umount everything is on the device.
    mount -t warren "$pool" "$at" -o "noexec,noatime,cells=$CELLS,_netdev,nofail,x-what=1,comment=a"
    echo text > at/file
    grep -q ' rw,nosuid,nodev,noexec,noatime ' <(grep "$at" /proc/self/mountinfo) || fail "$(mount)"
    umount "$at"
    ! "$WARREN" status "$pool" > /dev/null 2>&1 || fail "the fleet serves after umount"
    "$WARREN" fsck -n "$pool" | grep -q sound
    noted
    # A second mount keeps the fleet. Without its helper, umount does not wait.
    mkdir -p second
    mount -t warren "$pool" "$at" -o "cells=$CELLS"
    mount -t warren "$pool" "$PWD/second"
    umount "$at"
    [ "$(cat second/file)" = text ] || fail "the second mount"
    umount -i second
    mount -t warren "$pool" "$at" -o "cells=$CELLS"
    [ "$(cat at/file)" = text ] || fail "at once after an end"
    mount -o remount,ro "$at"
    code=0; touch at/x 2> errors || code=$?
    [ $code = 1 ] && grep -q Read-only errors || fail "remount,ro"
    mount -o remount,rw,exec "$at"
    touch at/x
    umount -l "$at"
    gone
    refusals
    # fstab: twice is once, and what is named there is what is done.
    echo "$pool $at warren ro,noexec,cells=$CELLS,_netdev,nofail 0 0" > fstab
    mount -a
    mount -a
    [ "$(grep -c "$at" /proc/self/mountinfo)" = 1 ] || fail "mounted twice"
    code=0; touch at/x 2> errors || code=$?
    [ $code = 1 ] || fail "ro of fstab"
    mount -o remount,rw "$at"
    touch at/y
    umount "$at"
    mount "$at" && umount "$at"
    ! "$WARREN" status "$pool" > /dev/null 2>&1 || fail "the fleet serves after umount"
    # A fleet that is served stays.
    "$WARREN" serve --cells "$CELLS" --pool "$pool" > /dev/null &
    for _ in $(seq 500); do "$WARREN" status pool > /dev/null 2>&1 && break; sleep 0.02; done
    mount "$at"
    umount "$at"
    "$WARREN" status pool > /dev/null || fail "a fleet of warren serve ended with its mount"
    "$WARREN" stop pool
    wait
    without_helpers
}

# The codes of mount(8): 1 wrong usage, 32 a mount that failed. Nothing is left behind.
refusals() {
    local code
    while read -r wanted option; do
        code=0
        mount -t warren "$pool" "$at" -o "$option" 2> errors || code=$?
        [ $code = "$wanted" ] && grep -q "^warren: -o ${option%%=*}" errors && [ "$(wc -l < errors)" = 1 ] ||
            fail "-o $option: $code $(cat errors)"
    done <<'END'
1 lazytime
1 diratime_or_so
1 fd=7
1 uid=1000
1 cells=65
1 nonempty
END
    code=0; mount -t warren /no/such/pool "$at" 2> errors || code=$?
    [ $code = 32 ] || fail "no pool: $code"
    code=0; mount -t warren "$pool" /no/such/place 2> errors || code=$?
    [ $code = 32 ] || fail "no place: $code"
    code=0; /usr/sbin/mount.warren "$pool" 2> errors || code=$?
    [ $code = 1 ] || fail "no directory: $code"
    code=0; /usr/sbin/mount.warren -N /proc/1/ns/mnt "$pool" "$at" 2> errors || code=$?
    [ $code = 1 ] && grep -q nsenter errors || fail "a namespace: $code"
    mount -s -t warren "$pool" "$at" -o unknown && umount "$at" || fail "mount -s"
    mount -f -t warren "$pool" "$at"
    ! grep -q "$at" /proc/self/mountinfo || fail "mount -f mounts"
    gone
}

# Users of a fleet that a mount with ro has started have no right to change anything, and use
# another mount all the same.
read_only_clients() {
    new_warren
    "$WARREN" stop pool
    "$WARREN" mount -o "ro,cells=$CELLS,clients=all" pool at
    mkdir -p second
    "$WARREN" mount pool second
    chmod 0777 second second/dir
    cp "$LIBRARY" library.so
    : > report
    chmod 0666 report
    local as_user="setpriv --reuid 54321 --regid 54321 --clear-groups"
    WARREN_REPORT=$PWD/report LD_PRELOAD=$PWD/library.so timeout 60 \
        $as_user /usr/bin/python3 "$CASES/options.py" client "$PWD/second" > found
    diff - found <<'END' || fail "$(cat report)"
made
written
gone
END
    [ "$(served)" -gt 2000 ] || fail "served $(served)"
    "$WARREN" umount at
    "$WARREN" umount second
    "$WARREN" stop pool
}

mkdir -p at
"$1"
