#!/bin/sh
# Makes .venv-peers and installs each peer into it with the versions of benchmarks/peers.txt; one that fails is left out.
set -eu
cd "$(dirname "$0")/.."

python=.venv-peers/bin/python
log=.venv-peers/install.log
"$python" -c 'import pip' >/dev/null 2>&1 || .venv/bin/python -m venv --clear .venv-peers

# Torch comes with those whose tools convert models through it.
peer() {
    name=$1
    shift
    if ! "$python" -m pip install --quiet --no-input --disable-pip-version-check --no-user \
        -c benchmarks/peers.txt "$@" >"$log" 2>&1; then
        reason=$(grep -m 1 -i error "$log" || tail -n 1 "$log")
        echo "headway: $name is left out, it does not install: $reason" >&2
    fi
}

echo "headway: installing the peers into .venv-peers (once; llama.cpp is compiled for this machine, which takes minutes) ..."
peer transformers torch transformers
peer "ONNX Runtime GenAI" onnxruntime-genai onnx onnx-ir torch transformers
peer CTranslate2 ctranslate2 torch transformers
export CMAKE_ARGS="${CMAKE_ARGS:--DGGML_NATIVE=ON -DLLAVA_BUILD=OFF}"
peer llama.cpp --no-binary llama-cpp-python llama-cpp-python
