# Writes files by their absolute path and makes each durable, until it is killed: by_path.py DIRECTORY LOG. The
# log, which lies elsewhere, has the name of each file whose calls have all returned, and every error.
import os, sys, time

directory, log = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
count = 0
while True:
    try:
        file = os.open(f"{directory}/by-path-{count}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(file, b"%d" % count)
            os.fsync(file)
        finally:
            os.close(file)
        os.write(log, b"by-path-%d\n" % count)
    except OSError as error:
        os.write(log, b"error %d\n" % error.errno)
        time.sleep(0.002)
    count += 1
