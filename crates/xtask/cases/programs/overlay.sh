# An overlay whose layers lie in the tree, and a program that has its root there.
# limit: 120
# tree: no
# needs: gcc python3 setfacl setpriv
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
# The kernel's copies, from which an overlay takes modes, are older than the modes.
cat >look.c <<'END'
#include <sys/stat.h>
int main(int count, char **paths)
{
    struct stat stat_of;
    while (--count && !stat(paths[count], &stat_of))
        ;
    return count;
}
END
gcc -static -O1 -o look look.c || exit 1
echo echo ran >lower/runs; echo read >lower/read; touch lower/listed; chmod 600 lower/read lower/listed
./look lower/runs lower/read lower/listed || exit 1
chmod 755 lower/runs; chmod 644 lower/read; setfacl -m u:1234:rwx lower/listed
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
    sh -c 'exec merged/runs'; setpriv --reuid 1234 --clear-groups cat merged/read
    echo == merged; show merged
    echo == upper; show upper
    python3 -c "import os; print(os.getxattr('upper/replaced', 'trusted.overlay.opaque'))"
} 2>&1
umount merged
mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged || exit 1
echo == again; show merged; cat merged/three
umount merged
