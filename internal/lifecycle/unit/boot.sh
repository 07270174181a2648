#!/bin/sh
# Written by Orrery, and removed with the last of its units, which this starts when the host boots.
### BEGIN INIT INFO
# Provides:          orrery
# Required-Start:    $local_fs $network
# Required-Stop:
# Default-Start:     2 3 4 5
# Default-Stop:
# Short-Description: Units of Orrery
### END INIT INFO

# supervises tells the supervisor from what may have its PID when it was killed and its lock stayed.
supervises() {
  [ "$(tr '\000' ' ' 2>/dev/null <"/proc/$1/cmdline")" = @CMDLINE@ ]
}
running() {
  [ -r @LOCK@ ] && read -r pid <@LOCK@ && supervises "$pid"
}

case ${1-} in
  start)
    ! running || exit 0
    [ -x @PROGRAM@ ] || exit 5
    cd / || exit
    (umask 077 && mkdir -p @STATE@ && : >>@LOG@) || exit
    umask 022
    env -i @ENVIRONMENT@ setsid @COMMAND@ </dev/null >>@LOG@ 2>&1 &
    # It is there when others can tell that it is, or has ended and its log says why.
    until running; do
      kill -0 $! 2>/dev/null || exit
      sleep 1
    done
    ;;
  stop)
    running || exit 0
    kill "$pid"
    while supervises "$pid"; do sleep 1; done
    ;;
  restart | force-reload)
    "$0" stop && exec "$0" start
    ;;
  status)
    if running; then
      echo "orrery runs as process $pid"
    else
      echo "orrery does not run"
      exit 3
    fi
    ;;
  *)
    echo "usage: $0 start|stop|restart|status" >&2
    exit 2
    ;;
esac
