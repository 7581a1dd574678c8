# An overlay whose layers lie in the tree, and a program that has its root there.
# limit: 120
# tree: no
# needs: gcc python3
mkdir lower lower/kept lower/emptied lower/replaced upper work merged
echo one >lower/one; echo two >lower/two; echo in >lower/kept/in; echo gone >lower/emptied/gone
echo old >lower/replaced/old; ln -s one lower/link; chmod 4755 lower/two
python3 -c "import os; os.setxattr('lower/one', 'user.colour', b'red')"
cat >shows.c <<'END'
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    char line[64] = "";
    FILE *file = fopen("/one", "r");
    int entries = 0;
    for (DIR *root = opendir("/"); readdir(root);)
        entries++;
    printf("%s%d\n", fgets(line, sizeof line, file), entries);
    return rename("/one", "/three") || symlink("three", "/fourth");
}
END
gcc -static -O1 -o lower/shows shows.c || exit 1
show() {
    find "$1" -mindepth 1 -printf '%P %y %m %s %l\n' | grep -v ' d ' | sort
    find "$1" -mindepth 1 -type d -printf '%P %m\n' | sort
}
# An overlay takes the modes of files from the kernel's copies (decision 56): these are fresh now.
ls -lR lower >/dev/null
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 1
{
    cat merged/one merged/kept/in
    echo more >>merged/one
    rm merged/two merged/emptied/gone
    rmdir merged/emptied
    rm -r merged/replaced; mkdir merged/replaced; echo new >merged/replaced/new
    mv merged/kept/in merged/kept/out
    ln merged/one merged/again
    echo whole >merged/link
    touch merged/made; mknod merged/pipe p
    python3 -c "import os; os.rename('merged/made', 'merged/moved')"
    python3 -c "import os; print(os.getxattr('merged/one', 'user.colour'))"
    chroot merged /shows
    echo == merged; show merged
    echo == upper; show upper
    python3 -c "import os; print(os.getxattr('upper/replaced', 'trusted.overlay.opaque'))"
} 2>&1
umount merged
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 1
echo == again; show merged; cat merged/three
umount merged
