# What the scripts here share; sourced by them.

# What a step returns that could not be made, and one that has nothing to look at: .ci/run shows both in its summary.
SKIPPED=77
NOTHING=78

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# skip WHY…: for what cannot be had here. Where it always can be, which REQUIRE_NETWORK says, that is a failure.
skip() {
    [[ -z ${REQUIRE_NETWORK:-} ]] || fail "$*"
    echo "not checked: $*" >&2
    exit "$SKIPPED"
}

# need COMMAND [PACKAGE]: installs what is not here.
need() {
    local command=$1 package=${2:-$1} as_root=()
    ! command -v "$command" >/dev/null || return 0
    command -v apt-get >/dev/null || fail "there is no $command here, and no apt-get to install it with"
    if [[ $EUID -ne 0 ]]; then
        command -v sudo >/dev/null || fail "there is no $command here: run \`apt-get install $package\` as root"
        as_root=(sudo)
    fi
    # Others may want what a script prints.
    "${as_root[@]}" apt-get update >&2
    "${as_root[@]}" apt-get install -y --no-install-recommends "$package" >&2
}

# from_registry HOME PACKAGE VERSION EXECUTABLE SHA256: puts a release under HOME, unless it is there, and prints where its executable is.
from_registry() {
    local home=$1 package=$2 version=$3 executable=$1/node_modules/$2/$4 sha256=$5 found
    if [[ ! -x $executable ]]; then
        need npm
        mkdir -p "$home"
        npm install --prefix "$home" --ignore-scripts --no-audit --no-fund "$package@$version" >&2 ||
            skip "$package@$version cannot be had from the registry"
    fi
    # Each time, not only after an installation: what lies there may have been replaced since. Nothing may run it then.
    if ! sha256sum --check --status <<<"$sha256  $executable"; then
        found=$(sha256sum "$executable" || true)
        rm -f "$executable"
        fail "$executable was not the release $version that is expected, and is deleted; its hash was ${found%% *}"
    fi
    echo "$executable"
}
