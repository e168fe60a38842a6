#!/bin/sh
# Makes .venv and installs headway into it with the versions of constraints.txt; arguments are names of extras.
set -eu
cd "$(dirname "$0")/.."

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
makes_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

find_python() {
    bare=
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
        new_enough "$candidate" || continue
        if makes_venvs "$candidate"; then
            echo "$candidate"
            return
        fi
        bare=${bare:-$candidate}
    done
    if [ -n "$bare" ]; then
        echo "headway: $bare cannot make a virtual environment; install its venv package (on Debian: python3-venv)" >&2
    else
        echo "headway: no Python 3.11 or newer among ${PYTHON:-python3, python3.11 to python3.14}; install one, or name it: make PYTHON=/path/to/python3" >&2
    fi
    exit 2
}

python=.venv/bin/python
if ! { new_enough "$python" && "$python" -c 'import pip' >/dev/null 2>&1; }; then
    base=$(find_python)
    echo "headway: making .venv with $("$base" -V)"
    "$base" -m venv --clear .venv
fi

# A terminal sees pip's progress bars, a log only what goes wrong.
quiet=--quiet
[ -t 1 ] && quiet=
install() { "$python" -m pip install $quiet --no-input --disable-pip-version-check --no-user -c constraints.txt "$@"; }

extras=$(echo "$*" | tr ' ' ',')
echo "headway: installing into .venv (once; PyTorch is the large part) ..."
install hatchling editables
install --no-build-isolation -e ".${extras:+[$extras]}"
