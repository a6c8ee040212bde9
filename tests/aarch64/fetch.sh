# What tests/aarch64/run needs, fetched once. Sets `python`, and `missing` where it fails.

# Debian packages of an architecture with all that they depend on, unpacked into a folder. apt gets a state of its own, in
# which nothing is installed yet.
unpack() { # architecture, folder, packages...
    local architecture=$1 to=$2 state=$folder/apt-$1
    shift 2
    mkdir -p "$state/lists/partial" "$state/archives/partial" "$to"
    : >"$state/status"
    local options=(
        -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" -o APT::Install-Recommends=0
        -o APT::Sandbox::User= -o Dir::State="$state" -o Dir::State::status="$state/status" -o Dir::Cache="$state"
        -o Debug::NoLocking=1
    )
    apt-get "${options[@]}" update || true # other sources of this machine may fail
    apt-get "${options[@]}" --yes --download-only install "$@"
    local archive
    for archive in "$state"/archives/*.deb; do dpkg -x "$archive" "$to"; done
    rm -r "$state"
}

fetch() {
    local log=$folder/fetch.log
    if [ ! -f "$folder/fetched" ]; then
        rm -rf "$host" "$target" "$folder/venv"
        echo "fetching the cross compiler, the emulator and Python for aarch64 into $folder"
        missing="apt-get and dpkg"
        command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
        missing="Debian's packages (see $log)"
        (unpack arm64 "$target" python3 libpython3-dev libstdc++6) >"$log" 2>&1 || return 1
        (unpack "$(dpkg --print-architecture)" "$host" g++-aarch64-linux-gnu qemu-user-static) >>"$log" 2>&1 || return 1
    fi
    python=$(basename "$(ls -d "$target"/usr/include/python3.*)")
    [ -f "$folder/fetched" ] && return 0
    missing="CMake, Ninja or nanobind (see $log)"
    (python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install cmake ninja nanobind) >>"$log" 2>&1 || return 1
    missing="wheels for aarch64 (see $log)"
    local version=${python#python} platforms=() tag
    for tag in 2_28 2_27 2_26 2_24 2_17; do platforms+=(--platform "manylinux_${tag}_aarch64"); done
    local requirements
    requirements=$("$folder/venv/bin/python" tests/aarch64/requirements.py)
    # shellcheck disable=SC2086 # one requirement a word
    "$folder/venv/bin/pip" install --target "$packages" --only-binary=:all: --python-version "$version" \
        "${platforms[@]}" --platform manylinux2014_aarch64 -c constraints.txt $requirements >>"$log" 2>&1 || return 1
    touch "$folder/fetched"
}

fetch_llvm_mca() {
    missing="Debian's llvm-19 (see $folder/llvm.log)"
    [ -f "$host/usr/lib/llvm-19/bin/llvm-mca" ] ||
        (unpack "$(dpkg --print-architecture)" "$host" llvm-19) >"$folder/llvm.log" 2>&1
}
