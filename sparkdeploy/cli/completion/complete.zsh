#compdef sparkdeploy
# Completes the names of sparkdeploy in zsh.
_sparkdeploy() {
  local -a typed answered whole open
  local line text
  (( CURRENT > 2 )) && typed=("${(@Q)words[2,CURRENT-1]}")
  answered=("${(@f)$("${words[1]/#\~\//$HOME/}" __complete words "${typed[@]}" "${(Q)PREFIX}" 2>/dev/null)}")
  for line in "${(@)answered[2,-1]}"; do
    text="${${line%%$'\t'*}//:/\\:}${${line#*$'\t'}:+:${line#*$'\t'}}"
    # A value follows what ends with an equals sign.
    if [[ ${line%%$'\t'*} == *= ]]; then open+=("$text"); else whole+=("$text"); fi
  done
  (( ${#whole} )) && _describe -V name whole
  (( ${#open} )) && _describe -V name open -S ''
  case ${answered[1]} in
    files) _files ;;
    folders) _files -/ ;;
  esac
}
if (( ! ${+functions[compdef]} )); then
  autoload -Uz compinit && compinit -i
fi
if [[ ${funcstack[1]} == _sparkdeploy ]]; then
  _sparkdeploy "$@"
else
  compdef _sparkdeploy sparkdeploy
fi
