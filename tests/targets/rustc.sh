#!/usr/bin/env bash
# Downloads a Rust compiler from Debian (rustc-web, about 170 MB) into a folder and prints the path of a working rustc, for targets
# whose standard library rustup would have to fetch: it has that of 64-bit Arm, and the source, from which check.sh makes others.
# Needs apt's tools, not root; nothing is fetched twice.
#
#   rustc.sh [FOLDER]     default: $UQAC_RUSTC_CACHE, else ~/.cache/uqac-rustc
set -euo pipefail

folder=${1:-${UQAC_RUSTC_CACHE:-$HOME/.cache/uqac-rustc}}
rustc=$folder/rustc
libraries=$folder/root/usr/lib/rustlib
complete() {
  [[ -f $libraries/src/rust/library/Cargo.lock && -d $libraries/aarch64-unknown-linux-gnu &&
    -x $folder/root/usr/bin/x86_64-w64-mingw32-dlltool ]] && "$rustc" --version > /dev/null 2>&1
}

mkdir -p "$folder"
exec 9> "$folder/lock"
flock 9 # a second run waits for the first, and then finds it there
if ! complete; then
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [[ -f $keyring ]] || { echo "rustc.sh: no $keyring (package debian-archive-keyring)" >&2; exit 1; }
  # an apt of its own: the system's settings and lists stay as they are
  mkdir -p "$folder"/apt/{state/lists/partial,cache/archives/partial} "$folder/root"
  : > "$folder/apt/status"
  cat > "$folder/apt/sources.list" << EOF
deb [signed-by=$keyring] http://deb.debian.org/debian bookworm main
deb [signed-by=$keyring] http://deb.debian.org/debian-security bookworm-security main
EOF
  cat > "$folder/apt/apt.conf" << EOF
Dir::State "$folder/apt/state";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Dir::Etc::sourcelist "$folder/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Sandbox::User "root";
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; };
EOF
  export APT_CONFIG=$folder/apt/apt.conf
  cd "$folder/apt"
  apt-get update -qq >&2
  # the names of two packages contain a version: the compiler's, LLVM's
  depends() { apt-cache depends "$1" | sed -n "s/.*Depends: \($2[^ ]*\)$/\1/p" | head -n 1; }
  compiler=$(depends libstd-rust-web-dev libstd-rust-web-)
  # the last one has dlltool, which writes import libraries of Windows
  packages=(rustc-web rust-web-src libstd-rust-web-dev libstd-rust-web-dev:arm64 "$compiler" "$(depends "$compiler" libllvm)" binutils-mingw-w64-x86-64)
  apt-get download -qq "${packages[@]}" >&2
  for package in ./*.deb; do dpkg -x "$package" "$folder/root"; done
  rm -f ./*.deb
  cat > "$rustc" << EOF
#!/bin/sh
LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu exec $folder/root/usr/bin/rustc --sysroot $folder/root/usr "\$@"
EOF
  chmod +x "$rustc"
  complete || { echo "rustc.sh: $rustc does not run, or has no source of the standard library" >&2; exit 1; }
fi
echo "$rustc"
