# What ./plimsoll and ./test share: finding and installing what is missing, and building. Sourced, not run.

# One Debian package a line, with the file, command or check that shows that it is there.
plimsoll_packages() {  # to build and run the program
  cat <<'LIST'
g++ command:g++
cmake command:cmake
ninja-build command:ninja
pkg-config command:pkg-config
libdnnl-dev file:/usr/include/oneapi/dnnl/dnnl.h
libfmt-dev file:/usr/include/fmt/format.h
nlohmann-json3-dev file:/usr/include/nlohmann/json.hpp
libcli11-dev file:/usr/include/CLI/CLI.hpp
libhwloc-dev file:/usr/include/hwloc.h
libsqlite3-dev file:/usr/include/sqlite3.h
zlib1g-dev file:/usr/include/zlib.h
libssl-dev file:/usr/include/openssl/evp.h
libxxhash-dev file:/usr/include/xxhash.h
libturbojpeg0-dev file:/usr/include/turbojpeg.h
libspng-dev file:/usr/include/spng.h
liburing-dev file:/usr/include/liburing.h
LIST
}
plimsoll_test_packages() {  # beside them, for the tests
  cat <<'LIST'
libgtest-dev file:/usr/include/gtest/gtest.h
coinor-libcbc-dev file:/usr/include/coin/Cbc_C_Interface.h
libgmock-dev file:/usr/include/gmock/gmock.h
python3 command:python3
LIST
  plimsoll_mpi_packages
}
plimsoll_mpi_packages() {  # for several processes that train together; mpirun has its own
  cat <<'LIST'
libopenmpi-dev check:plimsoll_has_mpi
openmpi-bin command:mpirun
LIST
}
plimsoll_python_packages() {  # for the Python package: pip install .
  cat <<'LIST'
python3 command:python3
python3-dev command:python3-config
python3-venv file:/usr/share/doc/python3-venv
LIST
}

# MPI's compiler wrapper comes with mpirun, its headers with another package.
plimsoll_has_mpi() {
  command -v mpicxx >/dev/null 2>&1 && echo '#include <mpi.h>' | mpicxx -E -x c++ - >/dev/null 2>&1
}

# plimsoll_missing LIST...: those of these lists that are not there.
plimsoll_missing() {
  for list; do "$list"; done | while read -r package sign; do
    case "$sign" in
      command:*) command -v "${sign#command:}" >/dev/null 2>&1 || echo "$package" ;;
      check:*) "${sign#check:}" || echo "$package" ;;
      file:*) [ -e "${sign#file:}" ] || echo "$package" ;;
    esac
  done
}

# plimsoll_install LIST...: installs what of these lists is missing. As root or with sudo that asks nothing (or a terminal to ask at);
# else prints the line to run.
plimsoll_install() {
  missing=$(plimsoll_missing "$@" | tr '\n' ' ')
  [ -z "$missing" ] && return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "plimsoll: these Debian packages (or their like) are needed: $missing" >&2
    return 1
  fi
  as_root=
  if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
      as_root=sudo
    else
      echo "plimsoll: some packages are missing; as root, run:" >&2
      echo "  apt-get update && apt-get install -y $missing" >&2
      return 1
    fi
  fi
  echo "plimsoll: installing $missing" >&2
  log=$(mktemp)
  if ! { $as_root apt-get update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "plimsoll: the installation failed; by hand: apt-get update && apt-get install -y $missing" >&2
    return 1
  fi
  rm -f "$log"
}

# plimsoll_use_ccache: where it is installed, with settings by which it keeps what precompiled headers are used for, whatever folder the checkout
# lies in. Settings that are given already hold.
plimsoll_use_ccache() {
  launcher=
  command -v ccache >/dev/null 2>&1 || return 0
  launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache
  CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}
  CCACHE_BASEDIR=${CCACHE_BASEDIR:-$plimsoll_root}
  CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
  CCACHE_COMPILERCHECK=${CCACHE_COMPILERCHECK:-content}
  export CCACHE_SLOPPINESS CCACHE_BASEDIR CCACHE_NOHASHDIR CCACHE_COMPILERCHECK
}

# plimsoll_build FOLDER TARGET [CMAKE-OPTION...]: configures once, builds quietly, shows the log when it fails.
plimsoll_build() {
  folder=$1 target=$2
  shift 2
  mkdir -p "$folder"
  plimsoll_use_ccache
  wanted="$* $launcher"
  if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/options" 2>/dev/null)" != "$wanted" ]; then
    if ! cmake -S "$plimsoll_root" -B "$folder" -G Ninja $launcher "$@" >"$folder/configure.log" 2>&1; then
      cat "$folder/configure.log" >&2
      return 1
    fi
    echo "$wanted" >"$folder/options"
  fi
  if [ -t 2 ]; then
    NINJA_STATUS="building [%f/%t] " ninja -C "$folder" "$target" >&2 || return 1
  else
    [ -e "$folder/built" ] || echo "plimsoll: building (a few minutes the first time)" >&2
    if ! ninja -C "$folder" "$target" >"$folder/build.log" 2>&1; then
      grep -E -A12 "error|FAILED" "$folder/build.log" | head -n 60 >&2
      return 1
    fi
  fi
  touch "$folder/built"
}
