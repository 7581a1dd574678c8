# Names of one file that some processes make and remove while others look at it. The kernel counts
# the links itself, too.
# limit: 120
# tree: no
# needs: python3
python3 - <<'END'
import os, sys

open("ctr", "w").close()
reading, writing = os.pipe()


def link(number):
    for turn in range(4000):
        try:
            os.link("ctr", f"h{number}")
        except FileNotFoundError:
            print("no such file, with", os.stat("ctr").st_nlink, "links")
            os._exit(1)
        os.unlink(f"h{number}")


def look():
    os.set_blocking(reading, False)
    while True:
        count = os.stat("ctr").st_nlink
        if not 1 <= count <= 3:
            print(count, "links")
            os._exit(1)
        try:
            if os.read(reading, 1) == b"":
                return
        except BlockingIOError:
            pass


def start(run, *arguments):
    child = os.fork()
    if child == 0:
        os.close(writing)
        run(*arguments)
        os._exit(0)
    return child


linkers = [start(link, number) for number in range(2)]
watchers = [start(look) for number in range(2)]
results = [os.waitpid(child, 0)[1] for child in linkers]
os.close(writing)
results += [os.waitpid(child, 0)[1] for child in watchers]
print(results, os.stat("ctr").st_nlink)
END
