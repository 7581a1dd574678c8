# A Python virtual environment, a package built and installed into it, and the package used.
# limit: 180
# tree: no
# needs: python3
python3 - <<'END'
import base64, hashlib, zipfile
files = {
    "burrow/__init__.py": "from .dig import dig\n",
    "burrow/dig.py": "def dig(n):\n    return sum(range(n))\n",
    "burrow-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: burrow\nVersion: 1.0\n",
    "burrow-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "burrow-1.0.dist-info/entry_points.txt": "[console_scripts]\ndig = burrow.cli:main\n",
    "burrow/cli.py": "import sys\nfrom . import dig\ndef main():\n    print(dig(int(sys.argv[1])))\n",
}
record = ""
with zipfile.ZipFile("burrow-1.0-py3-none-any.whl", "w") as wheel:
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
        wheel.writestr(name, text)
    wheel.writestr("burrow-1.0.dist-info/RECORD", record + "burrow-1.0.dist-info/RECORD,,\n")
END
python3 -m venv env
env/bin/python -m pip install --quiet --no-index --disable-pip-version-check ./burrow-1.0-py3-none-any.whl
env/bin/dig 100
env/bin/python -c 'import burrow, sys; print(burrow.dig(10), sys.prefix != sys.base_prefix)'
env/bin/python -m compileall -q env/lib && echo compiled
env/bin/python -m pip uninstall --quiet --yes burrow
env/bin/python -c 'import burrow' 2>/dev/null || echo "it is gone"
python3 - <<'END'
import shelve, tempfile, os, shutil
with shelve.open("shelf") as shelf:
    for i in range(200):
        shelf[str(i)] = list(range(i))
with shelve.open("shelf") as shelf:
    print(len(shelf), shelf["17"][-1])
with tempfile.TemporaryDirectory(dir=".") as place:
    shutil.copytree("env/bin", os.path.join(place, "bin"), symlinks=True)
    print(sorted(os.listdir(place)))
END
