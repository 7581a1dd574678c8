# Real programs, one piece of work after the other: projects.py git|sqlite|make SECONDS SEED ENOUGH. They end after
# so many seconds, or when there is a file ENOUGH. Each piece must succeed, and what is there afterwards must be what
# follows from all pieces before. Prints how many pieces there were and the longest that one of them took, in
# milliseconds.
import os, random, subprocess, sys, time

kind, seconds, seed, enough = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng, end = random.Random(seed), time.monotonic() + seconds


def run(*command, **options):
    """Its output. It may write nothing to its standard error."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0 and done.stderr == "", f"{command}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def expect(found, wanted):
    assert found == wanted, f"found {found!r}, not {wanted!r}"


class Git:
    """Commits of a tree that is also remembered here."""

    def __init__(self):
        os.environ.update(GIT_CONFIG_COUNT="2", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
        os.environ.update(GIT_CONFIG_KEY_1="gc.auto", GIT_CONFIG_VALUE_1="0")
        for who in ("AUTHOR", "COMMITTER"):
            os.environ.update({f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.invalid"})
        run("git", "init", "-q", "-b", "main", "tree")
        self.files, self.commits = {}, 0

    def work(self):
        for _ in range(rng.randrange(1, 8)):
            name = f"{rng.randrange(5)}/{rng.randrange(20)}"
            if name in self.files and rng.randrange(3) == 0:
                os.unlink(f"tree/{name}"), self.files.pop(name)
                continue
            os.makedirs(os.path.dirname(f"tree/{name}"), exist_ok=True)
            self.files[name] = rng.randbytes(rng.randrange(20_000))
            with open(f"tree/{name}", "wb") as file:
                file.write(self.files[name])
        self.commits += 1
        run("git", "-C", "tree", "add", "-A")
        run("git", "-C", "tree", "commit", "-q", "--allow-empty", "-m", str(self.commits))
        expect(run("git", "-C", "tree", "status", "--porcelain"), "")

    def check(self):
        expect(run("git", "-C", "tree", "rev-list", "--count", "HEAD"), f"{self.commits}\n")
        expect(run("git", "-C", "tree", "fsck", "--strict", "--no-progress", "--no-dangling"), "")
        run("git", "clone", "-q", "tree", "copy")
        for place in ("tree", "copy"):
            found = run("git", "-C", place, "ls-files").split()
            expect(sorted(found), sorted(self.files))
            for name in found:
                with open(f"{place}/{name}", "rb") as file:
                    assert file.read() == self.files[name], f"{place}/{name} differs"
        run("rm", "-r", "copy")


class Sqlite:
    """Transactions, of which some are rolled back."""

    def __init__(self):
        self.rows, self.mode = {}, rng.choice(("WAL", "DELETE", "TRUNCATE", "PERSIST"))
        self.ask(f"PRAGMA journal_mode={self.mode}; CREATE TABLE t(id INTEGER PRIMARY KEY, size INTEGER, text TEXT);")

    def ask(self, script):
        return run("sqlite3", "-bail", "db", input=script)

    def work(self):
        rows, script = dict(self.rows), "BEGIN;\n"
        for _ in range(rng.randrange(1, 60)):
            row, size = rng.randrange(2000), rng.randrange(1000)
            if rng.randrange(4) == 0:
                script += f"DELETE FROM t WHERE id = {row};\n"
                rows.pop(row, None)
            else:
                script += f"INSERT OR REPLACE INTO t VALUES({row}, {size}, '{'x' * size}');\n"
                rows[row] = size
        is_kept = rng.randrange(4) > 0
        self.ask(script + ("COMMIT;" if is_kept else "ROLLBACK;"))
        self.rows = rows if is_kept else self.rows
        found = self.ask("SELECT count(*), ifnull(sum(size), 0), ifnull(sum(length(text)), 0) FROM t;")
        size = sum(self.rows.values())
        expect(found, f"{len(self.rows)}|{size}|{size}\n")

    def check(self):
        expect(self.ask("PRAGMA integrity_check;"), "ok\n")
        found = self.ask("SELECT id, size FROM t;").split()
        expect({tuple(map(int, line.split("|"))) for line in found}, set(self.rows.items()))


class Make:
    """A C program whose parts change, and which prints their sum."""

    def __init__(self):
        self.parts = [0] * 6
        names = [f"part{n}" for n in range(len(self.parts))]
        with open("main.c", "w") as file:
            file.write("#include <stdio.h>\n" + "".join(f"int {name}(void);\n" for name in names))
            file.write('int main(void) { printf("%d\\n", ' + " + ".join(f"{name}()" for name in names) + "); }\n")
        with open("Makefile", "w") as file:
            objects = " ".join(f"{name}.o" for name in names)
            file.write(f"program: main.o {objects}\n\tcc -o $@ $^\n%.o: %.c\n\tcc -c -o $@ $<\n")
            file.write("clean:\n\trm -f program *.o\n")
        for n in range(len(self.parts)):
            self.change(n)

    def change(self, n):
        self.parts[n] = rng.randrange(1000)
        with open(f"part{n}.c", "w") as file:
            file.write(f"int part{n}(void) {{ return {self.parts[n]}; }}\n")

    def work(self):
        self.change(rng.randrange(len(self.parts)))
        run("make", "-s", "-j2")
        try:
            expect(run("./program"), f"{sum(self.parts)}\n")
        except PermissionError as error:
            # Whether it stays so tells whose the old mode was.
            again = os.access("program", os.X_OK)
            raise AssertionError(f"{error}; mode {os.stat('program').st_mode:o}, executable now: {again}")
        run("make", "-q")

    def check(self):
        run("make", "-s", "clean")
        expect(sorted(os.listdir()), sorted(["Makefile", "main.c"] + [f"part{n}.c" for n in range(len(self.parts))]))


work = {"git": Git, "sqlite": Sqlite, "make": Make}[kind]()
pieces, slowest = 0, 0.0
while True:
    is_over = time.monotonic() > end or os.path.exists(enough)
    begun = time.monotonic()
    work.work()
    if is_over or rng.randrange(8) == 0:
        work.check()
    pieces, slowest = pieces + 1, max(slowest, time.monotonic() - begun)
    if is_over:
        break
print(f"{pieces} pieces, the longest took {slowest * 1000:.0f} ms")
