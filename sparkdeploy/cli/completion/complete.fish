# Completes the names of sparkdeploy in fish.
function __sparkdeploy_complete
    set -l typed (commandline -opc)
    set -l program (string replace -r '^~/' "$HOME/" -- $typed[1])
    set -e typed[1]
    set -l current (commandline -ct | string trim -l -c '"\'')
    set -l answered (command $program __complete words $typed "$current" 2>/dev/null)
    set -l own $answered[1]
    set -e answered[1]
    printf '%s\n' $answered
    switch "$own"
        case files
            __fish_complete_path "$current"
        case folders
            __fish_complete_directories "$current"
    end
end
complete -c sparkdeploy -f -k -a '(__sparkdeploy_complete)'
