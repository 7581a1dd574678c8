# git on this repository's files: init, add, commit, branch, merge, clone, gc, fsck, worktree.
# limit: 180
# tree: no
# needs: git tar
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.invalid GIT_AUTHOR_DATE='2001-02-03T04:05:06Z'
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.invalid GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
export GIT_CONFIG_COUNT=3 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_KEY_1=init.defaultBranch GIT_CONFIG_VALUE_1=main
export GIT_CONFIG_KEY_2=gc.auto GIT_CONFIG_VALUE_2=0
mkdir project
# Both runs get the same files, whoever edits the repository meanwhile.
sources="$PLACE/sources.tar"
if [ ! -e "$sources" ]; then
  (cd "$REPO" && git ls-files -z |
    tar cf - --null --verbatim-files-from --ignore-failed-read -T - 2> /dev/null) > "$sources"
fi
tar xf "$sources" -C project
cd project
git init -q .
git add -A
git commit -q -m first
git rev-parse HEAD
git status --porcelain
git checkout -q -b side
for i in $(seq 50); do mkdir -p "side/$i"; echo "$i" > "side/$i/file"; done
git add -A && git commit -q -m side
git mv side/1 side/one && echo more >> side/2/file
git status --porcelain
git commit -q -a -m moved
git checkout -q main
test ! -e side && echo "side is gone"
echo main > only-main && git add -A && git commit -q -m main
git merge -q --no-edit side
git rev-parse HEAD
git stash list
git tag -a -m tag v1
git gc -q --prune=now
git fsck --strict --no-progress
git repack -q -a -d -f
git count-objects -v | grep -E '^(count|packs|garbage)'
cd ..
git clone -q project copy
git -C copy rev-parse HEAD
git clone -q --bare project bare.git
git -C bare.git fsck --no-progress
git -C copy worktree add -q ../tree v1
git -C tree status --porcelain
diff -r --exclude=.git project copy && echo same
git -C copy reset -q --hard HEAD~1
git -C copy clean -fdxq
git -C copy log --oneline | wc -l
