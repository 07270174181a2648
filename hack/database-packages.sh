#!/usr/bin/env bash
# Installs the database servers that tests of the mirror's store start (internal/testenv), as far as they are missing. Without
# root or apt-get it says what to install.
set -euo pipefail

missing=()
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
PATH=$PATH:/usr/sbin command -v mariadbd >/dev/null || missing+=(mariadb-server-core)
command -v my_print_defaults >/dev/null || missing+=(mariadb-client-core) # for mariadb-install-db
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "${1:-}" = --missing ]; then
  echo "${missing[*]}"
  exit 0
fi
exec "$(dirname "${BASH_SOURCE[0]}")/install-packages.sh" databases "${missing[@]}"
