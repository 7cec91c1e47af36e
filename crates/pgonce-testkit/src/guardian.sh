# Usage: sh guardian.sh <folder> <signal>, with a pipe as standard input.
# Each line names the process to end when the pipe closes, or "-" for none.
# The pipe closes when its holder lets go of it or dies in whatever way.
# A line "run <process> <folder>": wait for the end of that process as well, and
# remove that folder too.
trap '' HUP INT TERM
folder=$1
signal=$2
running=-
runner='' run_folder=''
while read -r line; do
    case $line in
    'run '*)
        line=${line#run }
        runner=${line%% *}
        run_folder=${line#* }
        ;;
    *) running=$line ;;
    esac
done

# One that has ended may stay in the list until init takes note of it. This starts no program: ten guardians that each start two
# programs twice a second cost a fortieth of the processor time of a test run.
alive() {
    kill -0 "$1" 2>/dev/null || return
    state=''
    { read -r state <"/proc/$1/stat"; } 2>/dev/null
    case $state in *') Z '* | *') X '*) return 1 ;; esac
}

end() {
    kill -CONT "$1" 2>/dev/null
    kill "-$signal" "$1" 2>/dev/null || return
    turns=0
    while alive "$1"; do
        turns=$((turns + 1))
        [ "$turns" -eq 160 ] && kill -KILL "$1" 2>/dev/null
        [ "$turns" -gt 200 ] && return
        sleep 0.05
    done
}

if [ -n "$runner" ]; then
    while alive "$runner"; do sleep 2; done
    rm -rf "$run_folder"
fi

[ "$running" = - ] || end "$running"

# A server that was started in the very moment its owner died is known to
# nobody but its own pid file.
pidfile=$folder/data/postmaster.pid
if [ -s "$pidfile" ]; then
    read -r running <"$pidfile"
    end "$running"
fi

# A killed server cannot remove its System V shared memory segment; the
# seventh line of its pid file says which one that is.
for pidfile in "$folder"/data/postmaster.pid "$folder"/crashed.pid; do
    if [ -s "$pidfile" ]; then
        segment=$(sed -n '7s/^ *[0-9]* *\([0-9][0-9]*\).*/\1/p' "$pidfile")
        [ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null
    fi
done

# Orphaned sessions may still be writing their last files for a moment.
turns=0
while [ -e "$folder" ] && [ "$turns" -lt 100 ]; do
    rm -rf "$folder" 2>/dev/null && continue
    turns=$((turns + 1))
    sleep 0.05
done
