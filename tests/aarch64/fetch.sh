# What tests/aarch64/run needs, fetched once. Sets `python`, and `missing` where something cannot be had.

# Debian packages of an architecture with all that they depend on, unpacked into a folder. apt gets a state of its own, in
# which nothing is installed yet. No `set -e` here: callers ask whether it worked.
unpack() { # architecture, folder, packages...
    local architecture=$1 to=$2 state=$folder/apt-$1
    shift 2
    mkdir -p "$state/lists/partial" "$state/archives/partial" "$to" && : >"$state/status" || return 1
    local options=(
        -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" -o APT::Install-Recommends=0
        -o APT::Sandbox::User= -o Dir::State="$state" -o Dir::State::status="$state/status" -o Dir::Cache="$state"
        -o Debug::NoLocking=1 -o Acquire::Retries=2
    )
    apt-get "${options[@]}" update # other sources of this machine may fail
    apt-get "${options[@]}" --yes --download-only install "$@" || return 1
    local archive
    for archive in "$state"/archives/*.deb; do dpkg -x "$archive" "$to" || return 1; done
    rm -r "$state"
}

fetch() {
    local log=$folder/fetch.log
    if [ ! -f "$folder/fetched" ]; then
        rm -rf "$host" "$target" "$folder/venv"
        echo "fetching a cross compiler, an emulator and Python for aarch64 into $folder"
        missing="apt-get and dpkg"
        command -v apt-get >/dev/null && command -v dpkg >/dev/null || return 1
        missing="Debian's packages ($log)"
        unpack arm64 "$target" python3 libpython3-dev libstdc++6 >"$log" 2>&1 || return 1
        unpack "$(dpkg --print-architecture)" "$host" g++-aarch64-linux-gnu qemu-user-static >>"$log" 2>&1 || return 1
    fi
    python=$(basename "$target"/usr/include/python3.*)
    if [ -f "$folder/fetched" ]; then return 0; fi
    missing="CMake, Ninja and nanobind ($log)"
    python3 -m venv "$folder/venv" >>"$log" 2>&1 || return 1
    "$folder/venv/bin/pip" install cmake ninja nanobind >>"$log" 2>&1 || return 1
    missing="wheels for aarch64 ($log)"
    local platforms=(--platform manylinux2014_aarch64) glibc requirements
    for glibc in 2_17 2_24 2_26 2_27 2_28; do platforms+=(--platform "manylinux_${glibc}_aarch64"); done
    requirements=$("$folder/venv/bin/python" tests/aarch64/requirements.py) || return 1
    # shellcheck disable=SC2086 # one requirement a word
    "$folder/venv/bin/pip" install --target "$packages" --only-binary=:all: --python-version "${python#python}" \
        "${platforms[@]}" -c constraints.txt $requirements >>"$log" 2>&1 || return 1
    touch "$folder/fetched"
}
