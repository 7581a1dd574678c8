# A repository from its first commit on.
# needs: git
set -e
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE="2020-01-01T00:00:00Z" GIT_COMMITTER_DATE="2020-01-01T00:00:00Z" GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q .
seq 100 > a
git add a
git commit -qm one
git rev-parse HEAD
echo x >> a
git status --short
git diff | cat
git commit -qam two
git log --oneline | cat
git gc -q
git clone -q . ../clone_$$
rm -rf ../clone_$$
git fsck
git stash list
git checkout -q -b x
git branch
