#!/usr/bin/env bash
# Installs the browser in which the console is tested, and fonts for its languages, as far as they are missing. Without root or
# apt-get it says what to install; with --missing it only names that.
set -euo pipefail

missing=()
[ -x "${CHROMIUM:-/usr/bin/chromium}" ] || missing+=(chromium)
compgen -G '/usr/share/fonts/opentype/noto/NotoSansCJK-*' >/dev/null || missing+=(fonts-noto-cjk)
if [ "${1:-}" = --missing ]; then
  echo "${missing[*]}"
  exit 0
fi
[ ${#missing[@]} -gt 0 ] || exit 0
exec "$(dirname "${BASH_SOURCE[0]}")/install-packages.sh" browser "${missing[@]}"
